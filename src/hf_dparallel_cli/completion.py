# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""Completion of commands and flags in a shell."""

from collections.abc import Iterable


_BASH = """\
_hf_dparallel() {{
  local words
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="{commands} --help --version" ;;
  esac
  if [[ $COMP_CWORD -eq 1 ]]; then words="{commands} --help --version"; fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _hf_dparallel hf-dparallel
"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def completion_script(shell: str, flags: dict[str, Iterable[str]]) -> str:
    """Returns what a shell evaluates to complete `hf-dparallel`.

    Args:
        shell (`str`): "bash" or "zsh".
        flags (`dict[str, Iterable[str]]`): the flags of each command.
    """
    cases = "\n".join(f'    {command}) words="{" ".join(names)} --help" ;;' for command, names in flags.items())
    return (_ZSH if shell == "zsh" else "") + _BASH.format(cases=cases, commands=" ".join(flags))
