//! The spawner for whole-system tests, whose own `main` is the test harness's.

fn main() {
    cabana_engine::helper_main();
    eprintln!("cabana-tests-spawner is started by the engine, not by hand");
    std::process::exit(2);
}
