//! What the tests of the whole system share with the programs that they start.

pub mod remote;
