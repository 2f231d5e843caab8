# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
import json

import pytest
import torch
from transformers import AutoModelForMaskedLM

from hf_dparallel import certainty_forcing_loss
from hf_dparallel.training.losses import row_terms
from hf_dparallel.training.objective import Objective, mean_by_row

from .helpers import naive_terms


OBJECTIVE = Objective()


def make_case(rows=5, length=11, vocab_size=13, seed=0):
    """Logits and labels with rows of every kind: scored or not, correct or not."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, length, vocab_size, generator=generator) * 2
    labels = torch.randint(vocab_size, (rows, length), generator=generator)
    right = torch.rand(rows, length, generator=generator) < 0.5
    labels = torch.where(right, logits.argmax(dim=-1), labels)
    labels[torch.rand(rows, length, generator=generator) < 0.4] = -100
    labels[1] = -100
    labels[2, 0] = (logits[2, 0].argmax() + 1) % vocab_size
    labels[2, 1:] = -100
    return logits, labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_terms_match_the_naive_loop(temperature, seed):
    logits, labels = make_case(seed=seed)
    terms = row_terms(Objective(temperature), logits, labels)
    consistency, certainty = naive_terms(logits, labels, temperature)
    torch.testing.assert_close(terms.losses.double(), torch.stack([consistency, certainty], 1), rtol=1e-5, atol=1e-6)
    scored = labels != -100
    assert terms.num_masked.tolist() == scored.sum(dim=1).tolist()
    assert terms.num_correct.tolist() == ((logits.argmax(dim=-1) == labels) & scored).sum(dim=1).tolist()
    assert not any(tensor.requires_grad for tensor in (terms.num_masked, terms.num_correct, terms.entropy))
    probs = torch.softmax(logits.double(), dim=-1)
    entropy = -(probs * probs.log()).sum(dim=-1)
    expected = (entropy * scored).sum(dim=1) / scored.sum(dim=1).clamp(min=1)
    torch.testing.assert_close(terms.entropy.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_weight_counts_a_token_that_often():
    logits, labels = make_case()
    weights = torch.randint(1, 3, labels.shape, generator=torch.Generator().manual_seed(1))
    again = labels.masked_fill(weights == 1, -100)
    plain, twice = row_terms(OBJECTIVE, logits, labels), torch.cat([labels, again], dim=1)
    expected = row_terms(OBJECTIVE, logits.repeat(1, 2, 1), twice)
    scored = labels != -100
    terms = mean_by_row(OBJECTIVE.token_terms(logits[scored], labels[scored]), labels, weights.float())
    torch.testing.assert_close(terms.losses, expected.losses)
    assert not torch.equal(terms.losses, plain.losses) and torch.equal(terms.num_correct, plain.num_correct)


@pytest.mark.parametrize("weights", [{}, {"certainty_weight": 0.5, "consistency_weight": 3.0}])
def test_loss_and_gradient_match_the_naive_loop(weights):
    logits, labels = make_case()
    single, double = logits.clone().requires_grad_(), logits.double().requires_grad_()
    loss = certainty_forcing_loss(single, labels, temperature=0.5, **weights)
    consistency, certainty = naive_terms(double, labels, 0.5)
    expected = weights.get("consistency_weight", 1.0) * consistency + weights.get("certainty_weight", 2.0) * certainty
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.mean().item(), rel=1e-5)

    loss.backward()
    expected.mean().backward()
    torch.testing.assert_close(single.grad.double(), double.grad, rtol=1e-4, atol=1e-7)
    assert (single.grad[labels == -100] == 0).all()


def test_scored_positions_alone_give_the_same():
    logits, labels = make_case()
    assert torch.equal(certainty_forcing_loss(logits[labels != -100], labels), certainty_forcing_loss(logits, labels))


def test_rows_do_not_depend_on_each_other():
    logits, labels = make_case()
    together = row_terms(Objective(), logits, labels)
    for row in range(len(labels)):
        alone = row_terms(Objective(), logits[[row]], labels[[row]])
        for name, values in together._asdict().items():
            torch.testing.assert_close(values[[row]], getattr(alone, name), rtol=1e-6, atol=1e-7)
    per_row = [certainty_forcing_loss(logits[[row]], labels[[row]]) for row in range(len(labels))]
    torch.testing.assert_close(torch.stack(per_row).mean(), certainty_forcing_loss(logits, labels))


@pytest.mark.parametrize("selected", [False, True])
def test_nothing_scored_gives_an_exact_zero_with_gradient(selected):
    logits = torch.randn(2, 3, 7, requires_grad=True)
    labels = torch.full((2, 3), -100)
    loss = certainty_forcing_loss(logits[labels != -100] if selected else logits, labels)
    assert loss.item() == 0
    loss.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_no_correct_prediction_gives_no_certainty_loss():
    logits = torch.randn(2, 3, 7, requires_grad=True)
    labels = (logits.argmax(dim=-1) + 1) % 7
    terms = row_terms(Objective(), logits, labels)
    consistency, certainty = terms.losses.unbind(dim=1)
    assert certainty.tolist() == [0.0, 0.0]
    assert consistency.min() > 0
    certainty.sum().backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_tokens_that_are_ruled_out():
    logits, labels = make_case()
    logits = torch.cat([logits, torch.full((*logits.shape[:2], 2), float("-inf"))], dim=-1).requires_grad_()
    loss = certainty_forcing_loss(logits, labels)
    torch.testing.assert_close(loss, certainty_forcing_loss(logits[..., :-2], labels))
    loss.backward()
    assert logits.grad.isfinite().all()


def test_bfloat16_logits_are_scored_in_float32():
    logits, labels = make_case()
    rounded = logits.bfloat16()
    loss = certainty_forcing_loss(rounded, labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, certainty_forcing_loss(rounded.float(), labels), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("logits_shape", "labels_shape"), [((2, 4, 7), (2, 3)), ((5, 7), (2, 3)), ((7,), (2, 3)), ((6, 7), (6,))]
)
def test_shapes_that_do_not_fit(logits_shape, labels_shape):
    with pytest.raises((IndexError, RuntimeError, ValueError), match="shape|size"):
        certainty_forcing_loss(torch.zeros(logits_shape), torch.zeros(labels_shape, dtype=torch.long))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_bad_temperature(temperature):
    with pytest.raises(ValueError, match="`temperature` must be positive"):
        certainty_forcing_loss(torch.zeros(1, 1, 3), torch.zeros(1, 1, dtype=torch.long), temperature=temperature)


# The published names of the weights whose gradient norms are on record.
OUR_NAMES = {
    "model.transformer.blocks.0.q_proj.weight": "model.layers.0.self_attn.q_proj.weight",
    "model.transformer.ff_out.weight": "lm_head.weight",
}


def labels_of(case, view):
    """The labels of one of the two views; the published Dream code never scores position 0."""
    input_ids = torch.tensor(case["input_ids"])
    positions = [p for p in case[view] if p > 0 or case["model"] != "dream"]
    return torch.full_like(input_ids, -100).index_copy(0, torch.tensor(positions).long(), input_ids[positions])


@pytest.mark.parametrize("name", ["llada", "llada_gqa", "dream"])
def test_loss_and_gradients_of_the_published_code(golden_dir, name):
    model = AutoModelForMaskedLM.from_pretrained(golden_dir / name / "model", dtype=torch.float32)
    lines = (golden_dir / name / "train_loss.jsonl").read_text().splitlines()
    assert len(lines) >= 6
    for case in map(json.loads, lines):
        input_ids = torch.tensor([case["noisy_ids"], case["noisy_rev_ids"]])
        labels = torch.stack([labels_of(case, "masked_positions"), labels_of(case, "masked_rev_positions")])
        model.zero_grad()
        logits = model(input_ids=input_ids, logits_to_keep=labels != -100).logits
        terms = row_terms(Objective(case["temperature"]), logits, labels)
        measured = {
            "ce_loss": terms.losses[0, 0],
            "ce_loss_rev": terms.losses[1, 0],
            "entropy_loss": terms.losses[0, 1],
            "entropy_loss_rev": terms.losses[1, 1],
            "num_masked": terms.num_masked[0],
            "num_masked_rev": terms.num_masked[1],
            "num_correct": terms.num_correct[0],
            "num_correct_rev": terms.num_correct[1],
        }
        # The published loss is the sum of the two views, ours the mean over rows.
        settings = {"temperature": case["temperature"], "certainty_weight": case["entropy_weight"]}
        total = 2 * certainty_forcing_loss(logits, labels, **settings)
        total.backward()
        measured["total_loss"] = total
        measured = {key: value.item() for key, value in measured.items()}
        assert measured == pytest.approx({key: case[key] for key in measured}, rel=1e-4, abs=1e-6), case["case"]

        weights = dict(model.named_parameters())
        norms = {key: weights[OUR_NAMES.get(key, key)].grad.norm().item() for key in case["grad_norms"]}
        assert norms == pytest.approx(case["grad_norms"], rel=1e-4, abs=1e-6), case["case"]
        all_norms = torch.stack([weight.grad.norm() for weight in weights.values()])
        assert all_norms.norm().item() == pytest.approx(case["grad_norm_all"], rel=1e-4), case["case"]
