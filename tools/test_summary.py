#!/usr/bin/env python3
"""Counts what a test run did: prints failed and skipped tests with their reasons, then one closing line.

Usage: test_summary.py RESULTS [CHECKS]
RESULTS holds <program>.xml as GoogleTest writes it and ctest.junit; a program that CTest calls failed and that
wrote no report (a crash, a time-out) counts as one failed test. CHECKS is a file of lines
name <tab> passed|failed|skipped <tab> detail. Exit code 1 if a test failed or none ran.
"""
import glob
import os
import re
import sys
import xml.etree.ElementTree as ElementTree


def one_line(text):
    text = re.sub(r"^\s*\S+\.(cpp|h):\d+\s+", "", text or "")  # where the skip stands in the source
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def googletest(path):
    """(name, passed|failed|skipped, reason) of each case in one report."""
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as problem:
        yield os.path.basename(path), "failed", f"the report cannot be read: {problem}"
        return
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None:
            yield name, "failed", ""
        elif case.find("skipped") is not None:
            skipped = case.find("skipped")
            yield name, "skipped", one_line(skipped.text or skipped.get("message"))
        elif case.get("status") == "notrun":
            yield name, "skipped", "disabled"
        else:
            yield name, "passed", ""


def programs(results):
    """Programs that CTest calls failed although their report is missing or has no failure."""
    path = os.path.join(results, "ctest.junit")
    if not os.path.exists(path):
        yield "ctest", "failed", "it wrote no report"
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()  # not parsed as XML: it quotes whatever bytes a test wrote
    for name, status in re.findall(r'<testcase name="([^"]*)"[^>]*? status="(\w+)"', text):
        report = os.path.join(results, name + ".xml")
        if status == "run" and os.path.exists(report):
            continue
        if os.path.exists(report) and any(row[1] == "failed" for row in googletest(report)):
            continue
        yield f"test_{name}", "failed", "it ended without finishing its tests"


def main():
    rows = []
    for path in sorted(glob.glob(os.path.join(sys.argv[1], "*.xml"))):
        rows += googletest(path)
    rows += programs(sys.argv[1])
    if len(sys.argv) > 2 and sys.argv[2]:
        with open(sys.argv[2], encoding="utf-8") as file:
            rows += [tuple(line.rstrip("\n").split("\t", 2)) for line in file if line.strip()]
    count = {word: sum(1 for row in rows if row[1] == word) for word in ("passed", "failed", "skipped")}
    for word in ("skipped", "failed"):
        if count[word]:
            print(f"{word}:")
            for name, result, reason in rows:
                if result == word:
                    print(f"  {name}" + (f": {reason}" if reason else ""))
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    sys.exit(1 if count["failed"] or not count["passed"] else 0)


if __name__ == "__main__":
    main()
