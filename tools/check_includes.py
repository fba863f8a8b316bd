#!/usr/bin/env python3
"""Checks the include rules of ARCHITECTURE.md and the length of files; exit code 1 if anything breaks them.

Usage: check_includes.py [--self-test] [ROOT]
1. A folder of src/ includes only itself and the folders of its row below; the rows have no cycle, and the
   libraries of CMakeLists.txt are linked with no more than their row.
2. `cli` may include everything but cuda, and of cpu only its door, cpu/device.h.
3. A header of a third-party library appears only in the files named below; CUDA headers only under src/cuda.
4. .cu files see ops/kernels.h, ops/delta_net.h (a constant), ops/rounding.h, ops/moment_codes.h, ops/*scratch.h, tensor/
   and cuda/ of ours, no more.
5. Includes in quotes are written from src/ (tests and bench: or tests/) and exist; there is no "..".
6. No file of ours has more than 600 lines.
--self-test breaks each rule in a scratch folder and fails if one of them goes unnoticed.
"""
import os
import re
import sys
import tempfile

MAX_LINES = 600
ALLOWED = {
    "base": "",
    "tensor": "base",
    "ops": "tensor base",
    "cpu": "ops tensor base",
    "cuda": "ops comm observe tensor base",
    "comm": "tensor base",
    "mpi_plugin": "comm tensor base",
    "text": "base",
    "data": "text base",
    "arrow_plugin": "data base",
    "model": "ops tensor base",
    "shard": "comm ops tensor base",
    "io": "tensor base",
    "observe": "tensor base",
    "advise": "observe tensor base",
    "train": "model shard data io observe comm ops tensor base",
    "cli": "advise train model shard data text io observe comm ops cpu tensor base",
}
APPS = {"cli", "base"}
DOORS = {"cpu": {"cpu/device.h"}}  # all that cli may see of this folder
GENERATED = {"build_info.h", "embedded.h"}
THIRD_PARTY = {  # pattern of the header: files that may include it
    r"nlohmann/": r"src/base/json\.cpp",
    r"yaml-cpp/": r"src/base/yaml\.cpp",
    r"spdlog/": r"src/base/log\.cpp",
    r"fmt/core\.h": r"src/base/format\.h",
    r"fmt/": r"src/base/format\.cpp",
    r"xxhash\.h": r"src/base/hash\.cpp",
    r"utf8proc\.h": r"src/text/unicode\.cpp",
    r"pcre2\.h": r"src/text/pretokenizer\.cpp",
    r"zlib\.h": r"src/base/gzip\.cpp|src/data/decompress\.cpp|tests/data/decompress_test\.cpp",
    r"(zstd|zstd_errors)\.h": r"src/data/decompress\.cpp|tests/data/decompress_test\.cpp",
    r"(arrow|parquet)/": r"src/arrow_plugin/\w+\.(h|cpp)",
    r"mpi\.h": r"src/mpi_plugin/\w+\.cpp",
    r"cblas\.h": r"src/cpu/gemm\.cpp",
    r"(gtest|gmock)/": r"tests/.*",
    r"benchmark/": r"bench/.*",
    r"(cuda|cublas|cudnn|nccl|cupti|nvml|cooperative_groups|mma|nv/|cub/|cute/|cutlass/)": r"src/cuda/.*",
}
POSIX = re.compile(r"(sys/\w+|arpa/inet|netdb|netinet/\w+|unistd|fcntl|glob|fnmatch|sched|spawn|dlfcn|signal|poll|pthread|immintrin|arm_neon|cxxabi)\.h")
CU_MAY = re.compile(r"(ops/(kernels|delta_net|rounding|moment_codes|\w*scratch)\.h|tensor/.*|cuda/.*)")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = (".h", ".cpp", ".cu", ".cuh", ".py")


def files_of(root):
    for top in ("src", "apps", "tests", "bench", "tools"):
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = [name for name in folders if name not in ("corpus", "__pycache__")]
            for name in sorted(names):
                if name.endswith(SOURCES):
                    yield os.path.relpath(os.path.join(folder, name), root)
    for name in ("dev", ".ci/run"):
        if os.path.exists(os.path.join(root, name)):
            yield name


def check_own(root, path, header):
    """What is wrong with `#include "header"` in the file `path`, or nothing."""
    if header in GENERATED:
        return None
    places = ("src", "tests") if path.startswith(("tests/", "bench/")) else ("src",)
    if ".." in header.split("/") or not any(os.path.exists(os.path.join(root, p, header)) for p in places):
        return f'"{header}" is not a path from {" or ".join(p + "/" for p in places)} of a file that exists'
    parts = path.split("/")
    to = header.split("/")[0]
    if parts[0] in ("tests", "bench"):
        return None
    if parts[0] == "apps":
        return None if to in APPS else f'apps may include only {", ".join(sorted(APPS))}, not "{header}"'
    here = parts[1]
    if path.endswith((".cu", ".cuh")) and not CU_MAY.fullmatch(header):
        return f'a .cu file may not include "{header}"'
    if here not in ALLOWED:
        return f"folder {here} has no row in the table"
    if to != here and to not in ALLOWED[here].split():
        return f'{here} may not include "{header}"'
    if here == "cli" and to in DOORS and header not in DOORS[to]:
        return f'cli sees only {", ".join(DOORS[to])} of {to}, not "{header}"'
    return None


def check_foreign(path, header):
    """The same for `#include <header>`."""
    for pattern, where in THIRD_PARTY.items():
        if re.match(pattern, header):
            return None if re.fullmatch(where, path) else f"<{header}> belongs in {where} only"
    if re.fullmatch(r"[a-z_0-9]+", header) or POSIX.fullmatch(header):
        return None
    return f"<{header}> belongs to no library of the table"


def check_file(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        lines = file.read().splitlines()
    problems = []
    if len(lines) > MAX_LINES:
        problems.append(f"{path}: {len(lines)} lines, at most {MAX_LINES}")
    if not path.endswith((".h", ".cpp", ".cu", ".cuh")):
        return problems
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            own = match[1] == '"'
            wrong = check_own(root, path, match[2]) if own else check_foreign(path, match[2])
            if wrong:
                problems.append(f"{path}:{number}: {wrong}")
    return problems


def check_table():
    """A row may name only folders whose own rows are complete without it."""
    problems, done = [], set()
    while len(done) < len(ALLOWED):
        ready = {name for name, row in ALLOWED.items() if name not in done and set(row.split()) <= done}
        if not ready:
            return [f"the table has a cycle among {sorted(set(ALLOWED) - done)}"]
        done |= ready
    return problems


def check_cmake(root):
    path = os.path.join(root, "CMakeLists.txt")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        text = file.read()
    problems = []
    for name, deps in re.findall(r"deltatune_folder\((\w+)(?: DEPS ([\w ]+?))?(?: LIBS [^)]*)?\)", text):
        extra = set(deps.split()) - set(ALLOWED.get(name, "").split())
        if extra:
            problems.append(f"CMakeLists.txt: {name} is linked with {', '.join(sorted(extra))}")
    return problems


def check(root):
    problems = check_table() + check_cmake(root)
    for path in files_of(root):
        problems += check_file(root, path)
    return problems


GOOD = {
    "src/base/error.h": "#include <string>\n",
    "src/tensor/tensor.h": '#include "base/error.h"\n',
    "src/ops/kernels.h": '#include "tensor/tensor.h"\n',
    "src/cpu/device.h": '#include "ops/kernels.h"\n',
    "src/cpu/gemm.h": "#include <vector>\n",
    "src/cpu/gemm.cpp": '#include "cpu/gemm.h"\n#include <cblas.h>\n',
    "src/cuda/kernels/norm.cu": '#include "ops/kernels.h"\n#include <cuda_bf16.h>\n',
    "src/cli/device.cpp": '#include "cpu/device.h"\n#include "build_info.h"\n#include <sys/stat.h>\n',
    "apps/main.cpp": '#include "base/error.h"\n',
    "tests/ops/near.h": "#include <cmath>\n",
    "tests/ops/a_test.cpp": '#include <gtest/gtest.h>\n#include "cpu/gemm.h"\n#include "ops/near.h"\n',
    "CMakeLists.txt": "deltatune_folder(ops DEPS tensor base)\n",
}
BAD = {  # file: (text, a word of the message)
    "src/ops/a.cpp": ('#include "cpu/device.h"\n', "ops may not include"),
    "src/base/b.cpp": ('  #  include "tensor/tensor.h"\n', "base may not include"),
    "src/cli/c.cpp": ('#include "cpu/gemm.h"\n', "cli sees only"),
    "src/cpu/d.cpp": ("#include <cuda_runtime.h>\n", "belongs in src/cuda"),
    "src/tensor/e.cpp": ("#include <nlohmann/json.hpp>\n", "belongs in src/base"),
    "src/tensor/f.cpp": ("#include <boost/any.hpp>\n", "no library of the table"),
    "src/cuda/kernels/g.cu": ('#include "comm/x.h"\n', "may not include"),
    "src/comm/x.h": ("", None),
    "src/ops/h.cpp": ('#include "../tensor/tensor.h"\n', "is not a path"),
    "src/ops/i.cpp": ('#include "kernels.h"\n', "is not a path"),
    "src/extra/j.cpp": ('#include "base/error.h"\n', "no row in the table"),
    "apps/k.cpp": ('#include "tensor/tensor.h"\n', "apps may include"),
    "src/base/l.cpp": ("\n" * 601, "601 lines"),
    "tools/m.py": ("\n" * 601, "601 lines"),
    "CMakeLists.txt": ("deltatune_folder(ops DEPS tensor cpu base LIBS dep_x)\n", "linked with cpu"),
}


def write(root, path, text):
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as file:
        file.write(text)


def self_test():
    failures = 0
    with tempfile.TemporaryDirectory() as root:
        for path, text in GOOD.items():
            write(root, path, text)
        for problem in check(root):
            print(f"self-test: reported without reason: {problem}")
            failures += 1
        for path, (text, _) in BAD.items():
            write(root, path, text)
        found = check(root)
        expected = {path: word for path, (_, word) in BAD.items() if word}
        for path, word in expected.items():
            if not any(problem.startswith(path + ":") and word in problem for problem in found):
                print(f"self-test: {path} was not reported ({word})")
                failures += 1
        if len(found) != len(expected):
            print("self-test: reported more than was broken:", *found, sep="\n  ")
            failures += 1
    print(f"check_includes: self-test, {len(expected)} violations tried, {failures} failures")
    return failures


def main():
    arguments = [a for a in sys.argv[1:] if a != "--self-test"]
    if "--self-test" in sys.argv[1:]:
        sys.exit(1 if self_test() else 0)
    root = arguments[0] if arguments else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    problems = check(root)
    for problem in problems:
        print(problem)
    print(f"check_includes: {sum(1 for _ in files_of(root))} files, {len(problems)} violations")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
