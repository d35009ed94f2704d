//! Compilers and run times: each makes a small program with threads and children, and runs it.

use super::work;

#[tokio::test]
async fn python_has_threads_processes_shared_memory_and_an_event_loop() {
    let script = r#"
cat >work.py <<'END'
import asyncio, multiprocessing as mp, sys, threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory

def square(x): return x * x

def fill(name, at):
    memory = shared_memory.SharedMemory(name)
    memory.buf[at] = at + 1
    memory.close()

def produce(queue, lock, total):
    for n in range(100):
        with lock: total.value += n
    queue.put("produced")

async def ask(*command):
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return out.decode().strip(), process.returncode

async def loop():
    answers = await asyncio.gather(*(ask(sys.executable, "-c", f"print({n} * 2)") for n in range(3)))
    try:
        await asyncio.wait_for(asyncio.sleep(1000), 0.01)
    except asyncio.TimeoutError:
        return answers

if __name__ == "__main__":
    found = []
    threads = [threading.Thread(target=lambda n=n: found.append(square(n))) for n in range(20)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print("threads", sum(found))
    for method in "fork", "spawn", "forkserver":
        with mp.get_context(method).Pool(2) as pool: print(method, pool.map(square, range(4)))
    with ProcessPoolExecutor(2) as pool: print("executor", list(pool.map(square, range(3))))
    memory = shared_memory.SharedMemory(create=True, size=8)
    workers = [mp.Process(target=fill, args=(memory.name, n)) for n in range(8)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    print("shared", list(memory.buf[:8])); memory.close(); memory.unlink()
    queue, lock, total = mp.Queue(), mp.Lock(), mp.Value("i", 0)
    workers = [mp.Process(target=produce, args=(queue, lock, total)) for _ in range(2)]
    for worker in workers: worker.start()
    print(*(queue.get() for _ in workers), total.value)
    for worker in workers: worker.join()
    with mp.Manager() as manager:
        shared = manager.dict(a=1); shared["b"] = 2; print("manager", sorted(shared.items()))
    print("asyncio", asyncio.run(loop()))
END
python3 -m venv --without-pip v; v/bin/python work.py; v/bin/python -c 'import sys; print(sys.prefix)'"#;
    let expected = [
        "threads 2470",
        "fork [0, 1, 4, 9]",
        "spawn [0, 1, 4, 9]",
        "forkserver [0, 1, 4, 9]",
        "executor [0, 1, 4]",
        "shared [1, 2, 3, 4, 5, 6, 7, 8]",
        "produced produced 9900",
        "manager [('a', 1), ('b', 2)]",
        "asyncio [('0', 0), ('2', 0), ('4', 0)]",
        "/home/user/v",
    ];
    assert_eq!(work(script).await.lines().collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn node_has_workers_children_watches_and_a_server() {
    let script = r#"
cat >work.mjs <<'END'
import { Worker } from 'node:worker_threads';
import { execFileSync, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import http from 'node:http';
import process from 'node:process';

if (process.argv[2] === 'child') {
  process.on('message', n => { process.send(n * 2); process.disconnect(); });
} else {
  const code = 'const { parentPort, workerData } = require("worker_threads");' +
    'Atomics.add(new Int32Array(workerData), 0, 1); parentPort.postMessage("up")';
  const shared = new SharedArrayBuffer(4);
  const workers = [1, 2, 3].map(() => new Worker(code, { eval: true, workerData: shared }));
  await Promise.all(workers.map(worker => once(worker, 'exit')));
  console.log('workers', new Int32Array(shared)[0]);

  const child = fork(process.argv[1], ['child']);
  child.send(21);
  console.log('fork', (await once(child, 'message'))[0]);
  const sleeper = spawn('sleep', ['1000']);
  sleeper.kill();
  console.log('spawn', (await once(sleeper, 'exit'))[1], execFileSync('echo', ['sync']).toString().trim());

  fs.mkdirSync('watched');
  const watcher = fs.watch('watched');
  const change = once(watcher, 'change');
  fs.writeFileSync('watched/file', 'x');
  console.log('watch', (await change)[1]);
  watcher.close();

  const server = http.createServer((request, response) => response.end('served ' + request.url));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const answer = await fetch(`http://127.0.0.1:${server.address().port}/path`);
  console.log(await answer.text());
  server.close();
}
END
node work.mjs"#;
    assert_eq!(work(script).await, "workers 3\nfork 42\nspawn SIGTERM sync\nwatch file\nserved /path");
}

#[tokio::test]
async fn npm_installs_a_packed_package_and_runs_a_script() {
    let script = r#"
        mkdir lib app; cd lib; printf '{"name":"probe","version":"1.2.3","main":"m.js","bin":"b.js"}' >package.json
        echo 'module.exports = () => 42' >m.js; printf '#!/usr/bin/env node\nconsole.log("bin", require("probe")())\n' >b.js
        npm pack --silent --pack-destination ..; cd ../app
        printf '{"name":"app","version":"1.0.0","scripts":{"pretest":"echo before","test":"probe"}}' >package.json
        npm install --offline --no-audit --no-fund --silent ../probe-1.2.3.tgz
        npm ls --parseable | tail -1; npm test --silent
    "#;
    let said = work(script).await;
    assert_eq!(said, "probe-1.2.3.tgz\n/home/user/app/node_modules/probe\nbefore\nbin 42");
}

#[tokio::test]
async fn cpp_is_built_by_parallel_make_and_runs_with_threads_exceptions_and_sanitizers() {
    let script = r#"
for n in 1 2 3; do echo "int part$n() { return $n; }" >part$n.cc; done
cat >main.cc <<'END'
#include <iostream>
#include <stdexcept>
#include <thread>
#include <vector>
int part1(); int part2(); int part3();
int main(int argc, char **) {
    int sum = 0;
    std::vector<int> parts(3);
    std::thread threads[] = {std::thread([&] { parts[0] = part1(); }), std::thread([&] { parts[1] = part2(); }),
                             std::thread([&] { parts[2] = part3(); })};
    for (auto &thread : threads) thread.join();
    for (int part : parts) sum += part;
    try { throw std::runtime_error("thrown"); } catch (std::exception &e) { std::cout << e.what() << ' ' << sum << '\n'; }
    if (argc > 1) { int *p = new int[2]; delete[] p; return p[1]; }
}
END
printf 'CXXFLAGS = -g -pthread -fsanitize=address,undefined\nprog: main.o part1.o part2.o part3.o\n\tg++ $(CXXFLAGS) -o $@ $^\n' >Makefile
make -s -j4; ./prog; ./prog bad 2>report || grep -om1 'heap-use-after-free' report"#;
    assert_eq!(work(script).await, "thrown 6\nheap-use-after-free");
}

#[tokio::test]
async fn a_go_program_is_built_and_collects_garbage_among_goroutines() {
    let script = r#"
export GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0
mkdir m; cd m
cat >main.go <<'END'
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
)

func main() {
	var group sync.WaitGroup
	sums := make(chan int, 100)
	for n := 0; n < 100; n++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			kept := make([][]byte, 16)
			for i := range kept {
				kept[i] = make([]byte, 64<<10)
			}
			runtime.Gosched()
			sums <- n + len(kept) - 16
		}(n)
	}
	group.Wait()
	runtime.GC()
	close(sums)
	total := 0
	for sum := range sums {
		total += sum
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	out, err := exec.Command("echo", "child").Output()
	fmt.Print(total, " ", stats.NumGC > 0, " ", err == nil, " ", string(out))
	os.Exit(7)
}
END
go mod init example.test/m 2>/dev/null; go vet; go build -o prog; ./prog || echo "ended with $?""#;
    assert_eq!(work(script).await, "4950 true true child\nended with 7");
}

#[tokio::test]
async fn a_rust_program_is_compiled_and_runs() {
    let script = r#"
cat >main.rs <<'END'
use std::{process::Command, sync::mpsc, thread};
fn main() {
    let (send, receive) = mpsc::channel();
    for n in 0..8u32 {
        let send = send.clone();
        thread::spawn(move || send.send(n * n).unwrap());
    }
    drop(send);
    let out = Command::new("echo").arg("child").output().unwrap();
    let caught = std::panic::catch_unwind(|| panic!("caught")).is_err();
    print!("{} {} {}", receive.iter().sum::<u32>(), caught, String::from_utf8_lossy(&out.stdout));
}
END
rustc -O main.rs; ./main 2>panic; grep -o caught panic"#;
    assert_eq!(work(script).await, "140 true child\ncaught");
}

#[tokio::test]
async fn a_java_program_is_compiled_and_runs_threads_and_a_process() {
    let script = r#"
cat >Work.java <<'END'
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;

public class Work {
    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<Integer>> parts = new ArrayList<>();
        for (int n = 0; n < 100; n++) {
            final int part = n;
            parts.add(pool.submit(() -> { byte[] waste = new byte[1 << 20]; return part + waste[part]; }));
        }
        int sum = 0;
        for (Future<Integer> part : parts) sum += part.get();
        pool.shutdown();
        System.gc();
        Process process = new ProcessBuilder("sh", "-c", "echo child; exit 3").start();
        String said = new String(process.getInputStream().readAllBytes()).trim();
        System.out.println(sum + " " + said + " " + process.waitFor());
        System.out.println(IntStream.range(0, 1000).parallel().sum() + " " + ProcessHandle.current().isAlive());
    }
}
END
javac -J-XX:TieredStopAtLevel=1 Work.java; java -Xmx48m -XX:+UseG1GC -Xshare:auto Work"#;
    assert_eq!(work(script).await, "4950 child 3\n499500 true");
}
