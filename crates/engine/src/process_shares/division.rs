//! Pure decisions: how many processes each sandbox may have.

use std::{collections::HashMap, sync::Arc};

/// Up to this part of all nobody is held to less than its own limit.
const LITTLE: u64 = 4;

/// A tenant that has fewer than this part of all, or than so many, may have as many also when there are few left.
const FEW: u64 = 64;
const LEAST_FEW: u64 = 8;

/// Sandboxes of a tenant that may be expected to grow at once: each may have one part of so many of what is left to it.
const AT_ONCE: u64 = 16;

/// Process 1, which each sandbox has.
const INIT: u64 = 1;

/// Of all sandboxes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sum {
    pub(super) taken: u64,
    pub(super) most: u64,
}

/// What one sandbox has.
#[derive(Clone, Debug)]
pub(super) struct Count {
    pub(super) tenant: Arc<str>,
    pub(super) now: u64,
}

impl Sum {
    pub(super) fn is_little(self) -> bool {
        self.growth_until_much() > 0
    }

    pub(super) fn growth_until_much(self) -> u64 {
        (self.most / LITTLE).saturating_sub(self.taken)
    }

    fn free(self) -> u64 {
        self.most.saturating_sub(self.taken)
    }

    fn few(self) -> u64 {
        (self.most / FEW).max(LEAST_FEW)
    }

    /// A tenant leaves the last eighth to others. Once there were several, it has at most half.
    fn left_to_tenant(self, has_several_tenants: bool, has: u64) -> u64 {
        let share = if has_several_tenants { self.most / 2 } else { self.most };
        share.saturating_sub(has).min(self.free().saturating_sub(self.most / 8))
    }
}

pub(super) fn has_commands(now: u64) -> bool {
    now > INIT
}

/// What each may have, in their order. It is never less than it has.
pub(super) fn divide(sum: Sum, has_several_tenants: bool, counts: &[Count]) -> Vec<u64> {
    let mut tenants = HashMap::<&str, (u64, u64)>::new();
    for Count { tenant, now } in counts {
        let (has, sandboxes) = tenants.entry(tenant).or_default();
        *has += now.saturating_sub(INIT);
        *sandboxes += 1;
    }
    let growth = |tenant: &str| {
        let (has, sandboxes) = tenants[tenant];
        let few = sum.few().saturating_sub(has);
        let part = few.max(sum.left_to_tenant(has_several_tenants, has)) / sandboxes.min(AT_ONCE);
        part.max(few.min(LEAST_FEW))
    };
    counts.iter().map(|Count { tenant, now }| now + growth(tenant)).collect()
}

/// By how much all may grow until one that may grow has used half of what it may.
pub(super) fn growth_before_next_look(counts: &[Count], shares: &[u64]) -> u64 {
    let growths = counts.iter().zip(shares).map(|(count, share)| share.saturating_sub(count.now));
    growths.filter(|growth| *growth > 0).min().map_or(u64::MAX, |growth| growth.div_ceil(2))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count(tenant: &str, now: u64) -> Count {
        Count { tenant: tenant.into(), now }
    }

    fn growths(sum: Sum, has_several_tenants: bool, counts: &[Count]) -> Vec<u64> {
        let shares = divide(sum, has_several_tenants, counts);
        counts.iter().zip(shares).map(|(count, share)| share - count.now).collect()
    }

    #[test]
    fn up_to_a_quarter_is_little() {
        assert_eq!(Sum { taken: 200, most: 1000 }.growth_until_much(), 50);
        assert!(Sum { taken: 249, most: 1000 }.is_little());
        assert!(!Sum { taken: 250, most: 1000 }.is_little() && !Sum { taken: 1200, most: 1000 }.is_little());
    }

    #[test]
    fn who_has_half_leaves_the_rest_to_another() {
        let all = [count("one", 301), count("one", 201), count("two", 1)];
        assert_eq!(growths(Sum { taken: 503, most: 1000 }, true, &all), [0, 0, 372]);
    }

    #[test]
    fn who_is_alone_leaves_the_last_eighth() {
        assert_eq!(growths(Sum { taken: 501, most: 1000 }, false, &[count("one", 501)]), [374]);
        assert_eq!(growths(Sum { taken: 875, most: 1000 }, false, &[count("one", 875)]), [0]);
    }

    #[test]
    fn who_has_few_finds_some_also_where_there_are_few_left() {
        let all = [count("one", 950), count("two", 4), count("three", 31)];
        assert_eq!(growths(Sum { taken: 985, most: 1000 }, true, &all), [0, 12, 0]);
        let idle: Vec<_> = (0..40).map(|_| count("idle", 1)).chain([count("one", 900)]).collect();
        let growths = growths(Sum { taken: 940, most: 1000 }, true, &idle);
        assert!(growths[..40].iter().all(|growth| *growth == 8), "inits are not what one has: {growths:?}");
    }

    #[test]
    fn sandboxes_of_a_tenant_that_grow_at_once_have_what_is_left_to_it_together() {
        let four: Vec<_> = (0..4).map(|_| count("one", 100)).collect();
        assert_eq!(growths(Sum { taken: 400, most: 1600 }, true, &four), [101; 4]);
    }

    #[test]
    fn the_next_look_comes_before_the_first_has_used_up_what_it_may() {
        let all = [count("one", 10), count("two", 20), count("three", 30)];
        assert_eq!(growth_before_next_look(&all, &[10, 40, 37]), 4);
        assert_eq!(growth_before_next_look(&all, &[10, 20, 30]), u64::MAX, "none of them can grow");
    }

    proptest! {
        #[test]
        fn no_tenant_gets_beyond_its_share_and_none_that_has_few_is_refused(
            counts in prop::collection::vec((0_u8..4, 1_u64..2000), 1..16),
            others in 0_u64..5000,
            most in 1_000_u64..20_000,
            has_several_tenants: bool,
        ) {
            let counts: Vec<_> = counts.iter().map(|(tenant, now)| count(&tenant.to_string(), *now)).collect();
            let sum = Sum { taken: others + counts.iter().map(|count| count.now).sum::<u64>(), most };
            let growths = growths(sum, has_several_tenants, &counts);
            for tenant in ["0", "1", "2", "3"] {
                let own = || counts.iter().zip(&growths).filter(|(count, _)| &*count.tenant == tenant);
                let has: u64 = own().map(|(count, _)| count.now - INIT).sum();
                let may_grow: u64 = own().map(|(_, growth)| growth).sum();
                if has >= sum.few() {
                    let share = if has_several_tenants { most / 2 } else { most };
                    prop_assert!(may_grow == 0 || has + may_grow <= share, "{has} and {may_grow} more");
                    prop_assert!(may_grow <= sum.free().saturating_sub(most / 8), "the last eighth is for others");
                } else {
                    let least = (sum.few() - has).min(LEAST_FEW);
                    prop_assert!(own().all(|(_, growth)| *growth >= least));
                }
            }
        }
    }
}
