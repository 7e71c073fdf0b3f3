"""`spconv-bench sim --schedules` and `--goals`: counts gemm schedules side by side, prints a table and writes JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spconv_compiler import env
from spconv_compiler.errors import InputError
from spconv_compiler.tools.console import FAILURE, check_writable, print_table, progress_bar, say, write_whole


def run_schedules(arguments: argparse.Namespace) -> int:
    """Measures, prints and writes; returns the exit code."""
    from spconv_compiler.bench import frames, sim_schedules
    from spconv_compiler.sim import chip

    out = check_writable(arguments.out)
    data = arguments.data or frames.default_data()
    if arguments.sample % chip.CHIPLETS:
        accepted = f"accepted with --schedules and --goals: multiples of {chip.CHIPLETS}"
        raise InputError(f"--sample {arguments.sample}; {accepted}")
    if arguments.goals is not None:
        return _run_goals(arguments, data, out)
    frame = frames.load_frame(arguments.frame or frames.default_names(data)[0], data)
    legal, refused = sim_schedules.legal(arguments.channels, arguments.dtype)
    unknown = [name for name in arguments.schedules if name not in legal]
    if unknown:
        reasons = {one.schedule: one.reason for one in refused}
        raise InputError(f"schedule {unknown[0]}: {reasons.get(unknown[0], 'unknown')}; accepted: {', '.join(legal)}")
    names = arguments.schedules or legal
    with progress_bar(len(names)) as step:
        rows = sim_schedules.measure(
            frame,
            arguments.channels,
            arguments.dtype,
            names,
            threads=arguments.threads or env.NUM_THREADS.get(),
            every=arguments.sample,
            progress=step,
        )
    result: dict[str, Any] = {
        "format": 1,
        "frame": {"name": frame.name, "N": len(frame.coords), "pairs": frame.pairs},
        "channels": arguments.channels,
        "dtype": arguments.dtype,
        "rows": rows,
    }
    text = json.dumps(result, indent=1).encode()
    write_whole(out, lambda file: file.write(text))
    say(
        f"{frame.name}: {len(frame.coords):,} voxels, {frame.pairs:,} pairs; C = {arguments.channels}, "
        f"{arguments.dtype}; counted on the simulator, times modelled, never measured on gfx950\n"
    )
    print_table(*sim_schedules.table(rows))
    for one in refused:
        say(f"{one.schedule}: {one.reason}")
    say(f"results → {out}")
    return 0 if all(row["right"] for row in rows) else FAILURE


def _run_goals(arguments: argparse.Namespace, data: Path, out: Path) -> int:
    from spconv_compiler.bench import sim_goals

    if arguments.read:
        return _report(_read(arguments.read), arguments.dtype, out)
    found = sim_goals.cases(data, arguments.frame, arguments.goals or sim_goals.WIDTHS)
    threads, rows = arguments.threads or env.NUM_THREADS.get(), list[dict[str, Any]]()
    with progress_bar(len(found)) as step:
        measured = sim_goals.measure(
            found,
            arguments.dtype,
            schedule=arguments.schedule,
            threads=threads,
            every=arguments.sample,
            progress=step,
        )
        for row in measured:
            rows.append(row)
            # A later case may fail: what was measured stays.
            _write(rows, arguments.dtype, out)
    return _report(rows, arguments.dtype, out)


def _read(files: Sequence[Path]) -> list[dict[str, Any]]:
    """The cases of results that were written one by one, each to be judged anew."""
    rows = list[dict[str, Any]]()
    for file in files:
        try:
            rows += json.loads(file.read_text())["rows"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"--read {file}: {error!r}; accepted: files that --goals has written") from error
    return rows


def _write(rows: Sequence[Mapping[str, Any]], dtype: str, out: Path) -> None:
    text = json.dumps({"format": 1, "dtype": dtype, "rows": rows}, indent=1).encode()
    write_whole(out, lambda file: file.write(text))


def _report(rows: Sequence[Mapping[str, Any]], dtype: str, out: Path) -> int:
    from spconv_compiler.bench import sim_goals

    _write([{**row, "reached": sim_goals.reached(row)} for row in rows], dtype, out)
    print_table(*sim_goals.table(rows))
    say("\ncounted on the simulator; times modelled, never measured on gfx950; (no goal there), ! missed")
    for line in sim_goals.notes(rows):
        say(line)
    say(f"results → {out}")
    return 0 if all(row["right"] for row in rows) else FAILURE
