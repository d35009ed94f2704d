//! The first names of files that have several.
//!
//! A path from the top may have megabytes, since trees may have 10,000 levels, and a guest gives as many files as it likes two
//! names at the end of it. So a file is kept as a directory and a name, and a directory as the one above it and a name: all of it
//! takes less than the tree itself takes of the disk.

use std::collections::HashMap;

/// The number of a directory, and a name in it.
type Entry = (usize, Box<[u8]>);

/// By the file's device and inode. Names are best added as a walk comes by them: what lies between two of them is looked at anew.
pub(crate) struct FirstNames {
    files: HashMap<(u64, u64), Entry>,
    /// By number: the one above, and the name there. Number zero is the top.
    directories: Vec<Entry>,
    /// The directory of the name that was added last, and the way to it: where in it the path of each level ends, and its number.
    last: Vec<u8>,
    way: Vec<(usize, usize)>,
}

impl FirstNames {
    pub(crate) fn new() -> Self {
        Self { files: HashMap::new(), directories: vec![(0, Box::default())], last: Vec::new(), way: Vec::new() }
    }

    /// `path` is relative to the top.
    pub(crate) fn insert(&mut self, file: (u64, u64), path: &[u8]) {
        let cut = path.iter().rposition(|byte| *byte == b'/');
        let (above, name) = cut.map_or((&b""[..], path), |cut| (&path[..cut], &path[cut + 1..]));
        let directory = self.directory(above);
        self.files.insert(file, (directory, name.into()));
    }

    pub(crate) fn path(&self, file: (u64, u64)) -> Option<Vec<u8>> {
        let (directory, name) = self.files.get(&file)?;
        let (mut names, mut at) = (vec![&name[..]], *directory);
        while at != 0 {
            let (above, name) = &self.directories[at];
            names.push(name);
            at = *above;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    fn directory(&mut self, path: &[u8]) -> usize {
        if self.last != path {
            self.go_to(path);
        }
        self.way.last().map_or(0, |(_, number)| *number)
    }

    fn go_to(&mut self, path: &[u8]) {
        let common = self.last.iter().zip(path).take_while(|(a, b)| a == b).count();
        let leads_on = |end: usize| end <= common && matches!(path.get(end), None | Some(b'/'));
        while self.way.pop_if(|(end, _)| !leads_on(*end)).is_some() {}
        let (known, mut above) = self.way.last().copied().unwrap_or((0, 0));
        let mut end = known;
        for name in path[known..].split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            end += name.len() + usize::from(end > 0);
            self.directories.push((above, name.into()));
            above = self.directories.len() - 1;
            self.way.push((end, above));
        }
        self.last.clear();
        self.last.extend_from_slice(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_told_as_it_was_added() {
        let paths = ["f", "a/f", "a/b/f", "a/b/g", "a/bc/f", "a/bc/d/e/f", "a/g", "ab/f", "g", "a/b/c/f"];
        let mut names = FirstNames::new();
        for (n, path) in paths.iter().enumerate() {
            names.insert((0, n as u64), path.as_bytes());
        }
        for (n, path) in paths.iter().enumerate() {
            assert_eq!(names.path((0, n as u64)).as_deref(), Some(path.as_bytes()));
        }
        assert_eq!(names.path((1, 0)), None);
        names.insert((0, 0), b"a/again");
        assert_eq!(names.path((0, 0)).as_deref(), Some(&b"a/again"[..]));
    }

    #[test]
    fn directories_on_the_way_are_kept_once() {
        let mut names = FirstNames::new();
        for (n, path) in ["a/f", "a/b/f", "a/b/c/f", "a/d/f"].iter().enumerate() {
            names.insert((0, n as u64), path.as_bytes());
        }
        assert_eq!(names.directories.len(), 5, "the top, a, b, c and d");
    }
}
