"""lit settings: `python -m lit lit_tests`, from a checkout (installed or not) or beside an installed package.

Substitutions: %opt (spconv-opt), %compile (spconv-compile), %filecheck, and lit's own `not`.
Features for REQUIRES: lld (a usable linker), torch.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Any

import lit.formats

# lit puts these two into the namespace of this file.
config: Any = globals()["config"]
lit_config: Any = globals()["lit_config"]

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
# One test starts a few processes of about a second each; this leaves room for a busy machine.
SECONDS_PER_TEST = 120

config.name = "spconv"
config.suffixes = {".mlir"}
config.test_source_root = str(HERE)
config.test_format = lit.formats.ShTest(execute_external=False)

for program, module in (
    ("%opt", "spconv_compiler.tools.opt"),
    ("%compile", "spconv_compiler.tools.compile"),
    ("%filecheck", "filecheck"),
):
    config.substitutions.append((program, f"{sys.executable} -m {module}"))

# Nothing but what is set here decides how a test runs.
for name in [name for name in config.environment if name.startswith("SPCONV_")]:
    del config.environment[name]
config.environment["SPCONV_CACHE"] = "off"
config.environment["SPCONV_CACHE_DIR"] = str(HERE / "Output" / "cache")
config.environment["PYTHONDONTWRITEBYTECODE"] = os.environ.get("PYTHONDONTWRITEBYTECODE", "")
config.environment["PYTHONUTF8"] = "1"
if (ROOT / "spconv_compiler").is_dir():
    config.environment["PYTHONPATH"] = str(ROOT)

if importlib.util.find_spec("filecheck") is None:
    lit_config.fatal("filecheck is not installed; install the package with its test extra: pip install -e '.[test]'")
if importlib.util.find_spec("psutil") is None:
    lit_config.fatal("psutil is not installed: lit needs it for time limits; pip install -e '.[test]'")
config.maxIndividualTestTime = SECONDS_PER_TEST

if importlib.util.find_spec("torch") is not None:
    config.available_features.add("torch")
if (
    subprocess.run(
        [sys.executable, "-c", "from spconv_compiler.linker import find_linker; find_linker()"],
        env={**os.environ, **config.environment},
        capture_output=True,
        check=False,
    ).returncode
    == 0
):
    config.available_features.add("lld")
