# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""The public names that need the Trainer, datasets or the Hub, whose import takes half as long again as the rest."""

from .data.rewards import numeric_answer_reward as numeric_answer_reward
from .data.trajectories import filter_trajectories as filter_trajectories
from .data.trajectories import generate_trajectories as generate_trajectories
from .evaluation.callback import DecodingCallback as DecodingCallback
from .evaluation.decoding import evaluate_decoding as evaluate_decoding
from .hub.export import export_for_engine as export_for_engine
from .hub.push import push_model_to_hub as push_model_to_hub
from .training.collator import DataCollatorForSemiAutoregressiveMasking as DataCollatorForSemiAutoregressiveMasking
from .training.config import CertaintyForcingConfig as CertaintyForcingConfig
from .training.losses import certainty_forcing_loss as certainty_forcing_loss
from .training.trainer import CertaintyForcingTrainer as CertaintyForcingTrainer
