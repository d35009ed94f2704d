//! The binary as its users meet it: words, exit codes, bytes, signals, terminals, templates, and ordinary users.

#![allow(clippy::unwrap_used)] // a case that cannot go on says so by a panic

mod config;
mod doctor;
mod image;
mod kit;
mod network;
#[path = "../common/root.rs"]
mod root;
mod run;
mod signals;
mod template;
mod terminal;
mod user;
mod words;
