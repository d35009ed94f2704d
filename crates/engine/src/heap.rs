//! The memory of a process that serves: what many requests needed for a moment goes back to the machine.
//!
//! The allocator has eight arenas for each processor, and gives back what is free at the end of the first alone. So what was once at work on
//! all of them keeps several times as much as it needed.
#![allow(unsafe_code)]

/// Has threads share so many arenas. For what was allocated before it changes nothing.
pub fn limit_arenas(most: usize) {
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    // SAFETY: sets a number of the allocator's.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, most) };
}

/// Gives all back that is free. Threads that allocate meanwhile wait for it.
pub fn trim() {
    // SAFETY: takes no pointers, and what is in use stays.
    unsafe { libc::malloc_trim(0) };
}

/// Of the process, in bytes: what is there, without what is shared with files.
pub fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split_whitespace().skip(1).map(|pages| pages.parse::<u64>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(resident.saturating_sub(shared) * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_needed_for_a_moment_goes_back() {
        // Small pieces, each of whose neighbours stays until the end: nothing is free at the end.
        let mut pieces: Vec<_> = (0..200_000).map(|_| Some(vec![7_u8; 1000])).collect();
        let before = resident().unwrap();
        let last = pieces.pop();
        pieces.iter_mut().enumerate().filter(|(number, _)| number % 100 != 0).for_each(|(_, piece)| *piece = None);
        trim();
        let given_back = before.saturating_sub(resident().unwrap());
        assert!(given_back > 100 << 20, "{given_back}");
        drop((pieces, last));
    }
}
