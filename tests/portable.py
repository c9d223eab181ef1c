"""The suite as it would run on other processors and with other numbers of threads: python tests/portable.py [PYTEST WORDS]

One line for each setting: passed, failed or skipped. A setting that this processor cannot run is found by trying: a child that
multiplies and takes a softmax dies of an illegal instruction. Logs are kept in the folder that is named at the end.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTINGS: tuple[dict[str, str], ...] = (
    *({"OPENBLAS_CORETYPE": name} for name in ("Haswell", "SkylakeX", "Zen", "Nehalem")),  # NumPy's and SciPy's products
    *({"ATEN_CPU_CAPABILITY": name} for name in ("default", "avx2", "avx512")),  # torch's own loops
    {"MKL_CBWR": "COMPATIBLE"},  # torch's products
    {"NUMBA_CPU_NAME": "generic"},  # our kernels: no AVX, no fused multiply-add
    *({"OMP_NUM_THREADS": n, "ANTEMBED_TEST_THREADS": n} for n in ("1", "4")),
)
PROBE = """
import numpy as np, torch
from threadpoolctl import threadpool_info
x = np.ones((99, 99), np.float32)
(x @ x).sum(), (x.astype(float) @ x).sum(), (torch.from_numpy(x) @ torch.from_numpy(x)).softmax(1).sort()
cores = {found["architecture"] for found in threadpool_info() if "architecture" in found}
print(f"BLAS: {', '.join(sorted(cores))}; torch: {torch.backends.cpu.get_cpu_capability()}")
"""


def run(setting: dict[str, str], words: list[str], logs: Path) -> bool:
    """Run the suite in one setting and say how it went. → whether nothing failed."""
    name = " ".join(f"{key}={value}" for key, value in setting.items())
    folder = logs / re.sub(r"\W+", "-", name)
    folder.mkdir()
    environment = {**os.environ, **setting}
    if any(key.startswith("NUMBA") for key in setting):
        environment["NUMBA_CACHE_DIR"] = str(folder / "numba")  # what is compiled for one processor is not for another
    probe = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=False)
    if probe.returncode < 0:
        print(f"{name}: skipped, this processor cannot run it ({signal.Signals(-probe.returncode).name})", flush=True)
        return True
    started = time.monotonic()
    with open(folder / "log.txt", "w") as log:
        done = subprocess.run([sys.executable, "-m", "pytest", *words], env=environment, stdout=log, stderr=log, check=False)
    lines = (folder / "log.txt").read_text().splitlines()
    counts = next((line.strip("= ") for line in reversed(lines) if re.search(r"\d+ (passed|failed|error)", line)), "no result")
    told = "passed" if done.returncode == 0 else f"FAILED ({done.returncode})"
    about = probe.stdout.strip() or "cannot be probed: " + (probe.stderr.strip().splitlines() or ["?"])[-1]
    print(f"{name}: {told}, {counts}; {time.monotonic() - started:.0f} s; {about}", flush=True)
    for line in lines if done.returncode else ():
        if line.startswith(("FAILED", "ERROR")):
            print(f"    {line}", flush=True)
    return done.returncode == 0


def main() -> int:
    words, only = sys.argv[1:], os.environ.get("SETTINGS", "")
    logs = Path(tempfile.mkdtemp(prefix="antembed-portable-"))
    chosen = [setting for setting in SETTINGS if not only or any(f"{k}={v}" in only.split() for k, v in setting.items())]
    failed = sum(not run(setting, words, logs) for setting in chosen)
    print(f"{failed} of {len(chosen)} settings failed; logs in {logs}")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
