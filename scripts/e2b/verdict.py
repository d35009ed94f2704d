"""What came of the SDK's suite: `verdict.py JUNIT COMPATIBILITY.md SDK WAY`. Counts by part, and each test that did not pass, which must be
in the document with its reason."""

import collections
import fnmatch
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

# The one that the suite belongs to.
OWN = "2.45.1"

# At least so many pass with it, where ports have names.
GOALS = {"core": 275, "more": 36, "templates": 28}


def excused(document, sdk, way):
    """Those that the document names for this SDK and this way."""
    tests, newer = [], False
    for line in document.splitlines():
        newer = newer or line.startswith("With an SDK that is newer")
        if line.startswith("## What differs"):
            break
        cells = line.split("|")
        if len(cells) != 4:
            continue
        why = cells[2].strip()
        fits_way = way == "plain" or not why.startswith("by plain HTTP only")
        fits_sdk = not newer or sdk != OWN or why.startswith("with 2.45.1 too")
        if fits_way and fits_sdk:
            tests += re.findall("`([^`]+)`", cells[1])
    return tests


def main(junit, document, sdk, way):
    counts = collections.defaultdict(collections.Counter)
    failed = []
    for case in xml.parse(junit).iter("testcase"):
        part = next((p.get("value") for p in case.iter("property") if p.get("name") == "part"), "local")
        file = case.get("classname").split(".")
        name = f"{'/'.join(file[file.index('tests') + 1:] if 'tests' in file else file)}::{case.get('name')}"
        outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
        counts[part][outcome] += 1
        if outcome in ("failure", "error"):
            failed.append((part, name, (case.find(outcome).get("message") or "").splitlines()[:1]))
    print(f"\ne2b {sdk}, {way}")
    for part in ("core", "more", "templates", "local"):
        print(f"  {part:<10}", ", ".join(f"{number} {outcome}" for outcome, number in counts[part].most_common()))
    known = excused(pathlib.Path(document).read_text(), sdk, way)
    unknown = 0
    for part, name, why in sorted(failed):
        # A test of both halves of the SDK is named once.
        test = name.split("::")[1].split("[")[0]
        is_known = any(fnmatch.fnmatchcase(test, one) for one in known)
        unknown += not is_known
        print(f"  {'known  ' if is_known else 'UNKNOWN'} {part} {name}: {''.join(why)[:160]}")
    short = [part for part, goal in GOALS.items() if (sdk, way) == (OWN, "domain") and counts[part]["passed"] < goal]
    for part in short:
        print(f"  too few pass: {part}, at least {GOALS[part]}")
    return 1 if unknown or short else 0


sys.exit(main(*sys.argv[1:]))
