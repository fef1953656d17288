"""Before JAX starts: tests spend their time compiling small programs, so code generation may be quick and plain."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit all of it
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
    os.environ["XLA_FLAGS"] = quick + os.environ.get("XLA_FLAGS", "")
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(
        prefix="recollect-tests-"
    )  # the user's compilation cache stays as it is
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
sys.path.insert(0, str(Path(__file__).parent))
