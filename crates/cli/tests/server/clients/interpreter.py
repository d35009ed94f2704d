"""What the code interpreter's Python SDK does, as its users write it. `python interpreter.py AREA`; see sync.py."""

import asyncio
import os
import sys
import threading
import time

from e2b import InvalidArgumentException, NotFoundException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox
from e2b_code_interpreter.charts import BarChart, BoxAndWhiskerChart, LineChart, PieChart, ScatterChart, SuperChart

from sync import raises


def code():
    with Sandbox.create(timeout=600, envs={"GIVEN": "sandbox"}) as sandbox:
        run = sandbox.run_code
        assert run("x = 1; x").text == "1" and run("x += 1; x").text == "2"
        results, said, wrong = [], [], []
        done = run(
            "import sys; print('out'); print('err', file=sys.stderr); 'shown'",
            on_result=results.append, on_stdout=said.append, on_stderr=wrong.append,
        )
        assert done.logs.stdout == ["out\n"] and done.logs.stderr == ["err\n"] and done.text == "shown", done
        assert [line.line for line in said] == ["out\n"] and abs(said[0].timestamp / 1e9 - time.time()) < 3600
        assert len(results) == 1 and results[0].is_main_result and len(wrong) == 1
        done = run("1 / 0")
        assert (done.error.name, done.error.value) == ("ZeroDivisionError", "division by zero"), done.error
        assert "line 1" in done.error.traceback and "\x1b" not in done.error.traceback
        done = run("!pwd")
        assert "".join(done.logs.stdout).strip() == "/home/user" and done.execution_count == 5, done
        # Variables of the sandbox, and of one execution alone.
        get = "import os; [os.getenv(name) for name in ('GIVEN', 'MORE')]"
        assert run(get).text == "['sandbox', None]"
        assert run(get, envs={"GIVEN": "call", "MORE": "it's \\ \"quoted\""}).text == "['call', 'it\\'s \\\\ \"quoted\"']"
        assert run(get).text == "['sandbox', None]"
        assert run("echo $0 $MORE", language="bash", envs={"MORE": "it's"}).logs.stdout[-1].endswith("it's\n")
        assert run("    y = 3\n    y").text == "3"
        big = run("print('x' * 3_000_000)").logs.stdout
        assert len("".join(big)) == 3_000_001
        # Its files are those of the sandbox.
        run("open('made', 'w').write('by code')")
        assert sandbox.files.read("/home/user/made") == "by code"


def contexts():
    with Sandbox.create(timeout=600) as sandbox:
        first = sandbox.create_code_context()
        there = sandbox.create_code_context(cwd="/tmp", language="python")
        assert (there.language, there.cwd) == ("python", "/tmp")
        listed = {context.id for context in sandbox.list_code_contexts()}
        assert {first.id, there.id} <= listed
        assert sandbox.run_code("import os; os.getcwd()", context=there).text == "/tmp"
        sandbox.run_code("x = 1", context=first)
        assert sandbox.run_code("x", context=there).error.value == "name 'x' is not defined"
        sandbox.restart_code_context(first)
        assert sandbox.run_code("x", context=first).error.name == "NameError"
        sandbox.remove_code_context(there)
        assert there.id not in {context.id for context in sandbox.list_code_contexts()}
        raises(NotFoundException, lambda: sandbox.run_code("1", context=there))
        raises(InvalidArgumentException, lambda: sandbox.run_code("1", context=first, language="python"))


def ends():
    with Sandbox.create(timeout=600) as sandbox:
        # Who goes away has its code interrupted, and the next who comes is not kept waiting.
        sandbox.run_code("kept = 5")
        raises(TimeoutException, lambda: sandbox.run_code("import time; time.sleep(300)", timeout=2))
        assert sandbox.run_code("kept", timeout=60).text == "5"
        # One that would not be interrupted is begun anew.
        stubborn = "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except KeyboardInterrupt:\n        pass"
        raises(TimeoutException, lambda: sandbox.run_code(stubborn, timeout=2))
        assert sandbox.run_code("1 + 1", timeout=60).text == "2"
        lost = sandbox.run_code("import os; os._exit(3)")
        assert lost.error.name == "UnexpectedEndOfExecution", lost
        assert sandbox.run_code("40 + 2").text == "42"
        # A stop takes the kernel along; whoever connects finds a new one.
        sandbox.run_code("x = 1")
        sandbox.pause(keep_memory=False)
        sandbox = Sandbox.connect(sandbox.sandbox_id, timeout=600)
        assert sandbox.run_code("x").error.name == "NameError"
        sandbox.run_code("x = 2")
        sandbox.pause()
        sandbox = Sandbox.connect(sandbox.sandbox_id, timeout=600)
        assert sandbox.run_code("x").text == "2"
        threading.Timer(2, sandbox.kill).start()
        raises(TimeoutException, lambda: sandbox.run_code("import time; time.sleep(300)", timeout=300))


def drawn(sandbox, code):
    done = sandbox.run_code("import matplotlib.pyplot as plt\n" + code + "\nplt.show()")
    assert done.error is None, done.error.traceback
    assert done.results[0].png and done.results[0].text and not done.results[0].extra
    return done.results[0].chart


def charts():
    with Sandbox.create(timeout=600) as sandbox:
        table = sandbox.run_code("import pandas as pd; pd.DataFrame({'a': [1, 2, 3]})").results[0]
        assert table.data == {"a": [1, 2, 3]} and "<table" in table.html

        line = drawn(sandbox, "plt.plot([1, 2], [3, 4], label='up'); plt.xlabel('Time (s)'); plt.title('T')")
        assert isinstance(line, LineChart) and (line.title, line.x_label, line.x_unit) == ("T", "Time (s)", "s")
        assert line.elements[0].label == "up" and line.elements[0].points == [(1, 3), (2, 4)], line.elements[0].points
        assert (line.x_scale, line.y_scale) == ("linear", "linear") and all(isinstance(x, float) for x in line.x_ticks)
        days = drawn(sandbox, "import datetime as d; plt.plot([d.date(2023, 9, day) for day in (1, 2)], ['A', 'B'])")
        assert (days.x_scale, days.y_scale) == ("datetime", "categorical"), days.to_dict()
        assert days.elements[0].points == [("2023-09-01", "A"), ("2023-09-02", "B")]

        cloud = drawn(sandbox, "plt.scatter([1, 2], [3, 4], label='some')")
        assert isinstance(cloud, ScatterChart) and cloud.elements[0].points == [(1, 3), (2, 4)]
        bars = drawn(sandbox, "plt.bar(['a', 'b'], [1, 2], label='sold'); plt.ylabel('n')")
        assert isinstance(bars, BarChart) and bars.y_label == "n"
        assert [(bar.label, bar.value, bar.group) for bar in bars.elements] == [("a", 1, "sold"), ("b", 2, "sold")]
        lying = drawn(sandbox, "plt.barh(['a', 'b'], [2, 2]); plt.xlabel('n')")
        assert [(bar.label, bar.value) for bar in lying.elements] == [("a", 2), ("b", 2)] and lying.y_label == "n"
        pie = drawn(sandbox, "plt.pie([90, 10], labels=['no', 'yes'], startangle=90)")
        assert isinstance(pie, PieChart)
        assert [(part.label, part.angle, part.radius) for part in pie.elements] == [("no", 324, 1), ("yes", 36, 1)]
        boxes = drawn(
            sandbox,
            "plt.boxplot([[85, 90, 78, 92, 88], [95, 89, 76, 91, 84, 87]], tick_labels=['A', 'B'], patch_artist=True)",
        )
        assert isinstance(boxes, BoxAndWhiskerChart)
        of = lambda box: (box.label, box.min, box.first_quartile, box.median, box.third_quartile, box.max, box.outliers)
        assert [of(box) for box in boxes.elements] == [
            ("A", 78, 85, 88, 90, 92, []), ("B", 84, 84.75, 88, 90.5, 95, [76]),
        ], [of(box) for box in boxes.elements]
        both = drawn(sandbox, "f, (a, b) = plt.subplots(1, 2); f.suptitle('two'); a.plot([1, 2, 4]); b.scatter([1], [2])")
        assert isinstance(both, SuperChart) and both.title == "two"
        assert [type(chart) for chart in both.elements] == [LineChart, ScatterChart]
        odd = drawn(sandbox, "f, a = plt.subplots(); a.add_artist(plt.Circle((0, 0), 1)); plt.title('round')")
        assert (odd.type.value, odd.title, odd.elements) == ("unknown", "round", [])


async def at_once():
    sandbox = await AsyncSandbox.create(timeout=600)
    try:
        places = await asyncio.gather(*(sandbox.create_code_context() for _ in range(3)))
        told = await asyncio.gather(*(sandbox.run_code(f"{n} * 10", context=c) for n, c in enumerate(places)))
        assert [one.text for one in told] == ["0", "10", "20"]
        # In one context one comes after the other.
        await sandbox.run_code("n = 0")
        await asyncio.gather(*(sandbox.run_code("n += 1") for _ in range(5)))
        assert (await sandbox.run_code("n")).text == "5"
    finally:
        await sandbox.kill()


def aio():
    asyncio.run(at_once())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    # Threads of the SDK's own may crash the interpreter while it ends, and say nothing of what was looked at.
    os._exit(0)
