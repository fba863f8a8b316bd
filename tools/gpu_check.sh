#!/bin/sh
# Runs the GPU tests on a machine with a GPU, from a folder that has deltatune, libdeltatune_cuda.so and test_cuda
# side by side (a build tree's tests/ folder will do as well):
#
#   sh gpu_check.sh [gtest filter]
#
# cuBLASLt is taken from python3's nvidia packages where it has them (LD_LIBRARY_PATH comes after them). The
# program runs once in full, its failures are shown last; then compute-sanitizer memcheck over a few small cases
# (CHECK_FILTER, or CHECK_FILTER= to leave it out). With OUT set, XML and logs are written to that folder.
# Exit status: 0 when both are clean, 77 when there is no GPU.
set -u

folder=$(cd "$(dirname "$0")" && pwd)
[ -x "$folder/test_cuda" ] || folder=$PWD
if [ ! -x "$folder/test_cuda" ]; then
  echo "gpu_check: there is no test_cuda in $folder" >&2
  exit 2
fi
filter=${1:-*}
check_filter=${CHECK_FILTER-*Optimizer.GradScale:*AdamwDoesNothing*:*SlicesOfOddRows*:*Extremes*:*LargeGates*:*WideRowsAndOfNone*}
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"

libraries=$(python3 - <<'EOF' 2>/dev/null
import glob, os, site, sys
roots = site.getsitepackages() + [site.getusersitepackages()] + sys.path
found = []
for root in roots:
    for path in sorted(glob.glob(os.path.join(root, "nvidia", "*", "lib"))):
        if path not in found:
            found.append(path)
print(":".join(found))
EOF
)
[ -n "$libraries" ] && export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi
[ -x "$folder/deltatune" ] && "$folder/deltatune" --version

log=$out/test_cuda.log
"$folder/test_cuda" --gtest_filter="$filter" --gtest_brief=0 --gtest_output="xml:$out/test_cuda.xml" >"$log" 2>&1
status=$?
checked=0
if [ -n "$check_filter" ] && command -v compute-sanitizer >/dev/null; then
  compute-sanitizer --tool memcheck --leak-check no --error-exitcode 9 \
    "$folder/test_cuda" --gtest_filter="$check_filter" >"$out/memcheck.log" 2>&1
  checked=$?
  echo "memcheck ($check_filter):"
  tail -n 4 "$out/memcheck.log"
  [ $checked -eq 0 ] || grep -m 40 -A 8 '^========= [A-Z]' "$out/memcheck.log"
else
  echo "memcheck: left out"
fi

echo "test_cuda ($filter): exit status $status"
# What failed, with the first lines of each failure; then the summary.
grep -n -A 12 ': Failure' "$log" | head -n 200
grep -E '^\[ +(PASSED|FAILED|SKIPPED) +\]|^\[==========\]' "$log" | grep -v ' ms)$' | tail -n 60
if grep -m 1 'no CUDA device' "$log"; then
  [ $status -eq 0 ] || exit 1
  exit 77
fi
[ $status -eq 0 ] && [ $checked -eq 0 ]
