"""Before JAX starts: tests spend their time compiling small programs, so code generation may be quick and plain."""

import os
import sys
import tempfile
from pathlib import Path

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false "
os.environ["XLA_FLAGS"] = QUICK + os.environ.get("XLA_FLAGS", "")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="recollect-tests-")  # the user's compilation cache stays as it is
sys.path.insert(0, str(Path(__file__).parent))
