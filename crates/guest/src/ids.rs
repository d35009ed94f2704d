//! The ids of a sandbox, seen from outside.

/// What is shown for an id that has no name inside: the kernel's own overflow id.
pub(crate) const NOBODY: u32 = 65534;

/// Outside id = `base` + inside id. A host provider has base 0 and count `u32::MAX`.
#[derive(Clone, Copy, Debug)]
pub struct IdMap {
    pub base: u32,
    pub count: u32,
}

impl IdMap {
    /// Ids outside the range are shown as 65534.
    pub fn inside(&self, outside: u32) -> u32 {
        match outside.checked_sub(self.base) {
            Some(inside) if inside < self.count => inside,
            _ => NOBODY,
        }
    }

    /// Whether an outside id is one of these.
    pub(crate) fn holds(&self, outside: u32) -> bool {
        outside.checked_sub(self.base).is_some_and(|inside| inside < self.count)
    }

    pub fn outside(&self, inside: u32) -> Option<u32> {
        if inside < self.count { self.base.checked_add(inside) } else { None }
    }

    /// The outside id for one that comes from a foreign place: what has no number here belongs to nobody.
    pub(crate) fn adopt(&self, inside: u32) -> Option<u32> {
        self.outside(inside).or_else(|| self.outside(NOBODY))
    }
}
