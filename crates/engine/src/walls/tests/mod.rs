//! The filter as data: the tables, the policy, and the program that is made of them, run by a small interpreter.

mod libc_numbers;
mod machine;
mod policy;
mod program;
mod tables;
