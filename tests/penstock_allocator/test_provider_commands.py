"""Commands of providers, as the allocator runs them."""

from __future__ import annotations

import pytest
import uvloop

from penstock_allocator.providers.provider import CommandResult, ProviderSilent, run_command


def test_a_command_that_ends_before_it_has_read_its_input_is_a_result_like_another() -> None:
    async def results() -> set[CommandResult]:
        return {await run_command(["true"], stdin=b"x" * size) for size in [0, 100, 100_000] * 20}

    assert uvloop.run(results()) == {CommandResult(0, "", "")}  # on which services run


async def test_a_command_reads_its_input_and_what_it_prints_is_told() -> None:
    done = await run_command(
        ["bash", "-s", "--", "word"], stdin=b"read -r line\nnext\necho $1 $line; echo no >&2; exit 3\n"
    )
    assert done == CommandResult(3, "word next", "no")


async def test_a_command_has_nothing_of_the_allocators_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "PENSTOCK_EXECUTOR_DEVICES",
        "SLURM_JOB_ID",
        "SLURM_NTASKS",
        "SBATCH_WAIT",
        "SLURM_CONF",
        "LAB_GREETING",
    ):
        monkeypatch.setenv(name, "set")
    done = await run_command(["env"])
    names = {line.partition("=")[0] for line in done.output.splitlines()}
    assert {name for name in names if name.startswith(("PENSTOCK_", "SLURM_", "SBATCH_", "LAB_"))} == {
        "LAB_GREETING",
        "SLURM_CONF",
    }


async def test_a_command_that_is_not_installed_says_nothing_of_pilots() -> None:
    with pytest.raises(ProviderSilent, match="sbatch-of-nobody cannot be run on the allocator's machine"):
        await run_command(["sbatch-of-nobody"])
