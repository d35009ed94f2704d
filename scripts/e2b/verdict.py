"""What came of the SDK's suite: `verdict.py JUNIT COMPATIBILITY.md SDK`. Counts by part, and each test that did not pass, which must be
in the document with its reason."""

import collections
import pathlib
import sys
import xml.etree.ElementTree as xml

# At least so many pass with the SDK that the suite belongs to.
GOALS = {"core": 275, "more": 36, "templates": 28}


def main(junit, document, sdk):
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
    print(f"\ne2b {sdk}")
    for part in ("core", "more", "templates", "local"):
        print(f"  {part:<10}", ", ".join(f"{number} {outcome}" for outcome, number in counts[part].most_common()))
    known = pathlib.Path(document).read_text()
    unknown = 0
    for part, name, why in sorted(failed):
        # A test of both halves of the SDK is named once.
        test = name.split("::")[1].split("[")[0]
        is_known = test in known or (test.startswith("test_traces_on_") and "test_traces_on_*" in known)
        unknown += not is_known
        print(f"  {'known  ' if is_known else 'UNKNOWN'} {part} {name}: {''.join(why)[:160]}")
    short = [part for part, goal in GOALS.items() if sdk == "2.45.1" and counts[part]["passed"] < goal]
    for part in short:
        print(f"  too few pass: {part}, at least {GOALS[part]}")
    return 1 if unknown or short else 0


sys.exit(main(*sys.argv[1:]))
