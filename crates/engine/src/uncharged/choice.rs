//! Pure decisions: whose commands end, whose lists are dropped, and which sockets lose what they hide.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use cabana_sandbox::SandboxId;

/// Connections wait to be accepted in any program. What is hidden in one at so many looks in a row, each so long after the last, while too
/// much is missing, is kept there.
const SIGHTINGS: u8 = 3;
const BETWEEN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct Suspect {
    pub(super) id: SandboxId,
    pub(super) tenant: Arc<str>,
    pub(super) bytes: u64,
}

/// The largest of the tenant that has most, until the rest is within the bound. `used` is by how much it has grown: nobody has more of
/// that, whatever was counted twice.
pub(super) fn choose(bound: u64, used: u64, mut suspects: Vec<Suspect>) -> Vec<Suspect> {
    let mut tenants = HashMap::<Arc<str>, u64>::new();
    for Suspect { tenant, bytes, .. } in &suspects {
        let all = tenants.entry(tenant.clone()).or_default();
        *all = all.saturating_add(*bytes);
    }
    let mut left = tenants.values().copied().fold(0, u64::saturating_add).min(used);
    let mut chosen = Vec::new();
    while left > bound {
        let largest = suspects.iter().enumerate().filter(|(_, one)| one.bytes > 0);
        let largest = largest.max_by_key(|(_, one)| (tenants.get(&one.tenant).copied(), one.bytes));
        let Some(place) = largest.map(|(place, _)| place) else { break };
        let one = suspects.swap_remove(place);
        tenants.entry(one.tenant.clone()).and_modify(|all| *all = all.saturating_sub(one.bytes));
        left = left.saturating_sub(one.bytes);
        chosen.push(one);
    }
    chosen
}

/// The sockets of one sandbox in which descriptors are where nobody can look: how often each was seen, and when it was last.
#[derive(Clone, Debug, Default)]
pub(super) struct Hidden(HashMap<u64, (u8, Instant)>);

impl Hidden {
    pub(super) fn meet(&mut self, found: &[u64], is_missing: bool, now: Instant) {
        if !is_missing {
            return self.0.clear();
        }
        let found: HashSet<u64> = found.iter().copied().collect();
        self.0.retain(|socket, _| found.contains(socket));
        for socket in found {
            let (times, at) = self.0.entry(socket).or_insert((1, now));
            if now.saturating_duration_since(*at) >= BETWEEN {
                (*times, *at) = (times.saturating_add(1), now);
            }
        }
    }

    /// Those that lose it if it is there still.
    pub(super) fn due(&self, now: Instant) -> HashSet<u64> {
        let is_due =
            |(times, at): &(u8, Instant)| *times + 1 >= SIGHTINGS && now.saturating_duration_since(*at) >= BETWEEN;
        self.0.iter().filter(|(_, seen)| is_due(seen)).map(|(socket, _)| *socket).collect()
    }

    /// When it is worth looking again.
    pub(super) fn again(&self) -> Option<Instant> {
        self.0.values().map(|(_, at)| *at + BETWEEN).max()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn suspect(tenant: &str, bytes: u64) -> Suspect {
        Suspect { id: SandboxId::random(), tenant: tenant.into(), bytes }
    }

    /// By their places.
    fn chosen(bound: u64, used: u64, suspects: &[Suspect]) -> Vec<usize> {
        let chosen = choose(bound, used, suspects.to_vec());
        chosen.iter().map(|one| suspects.iter().position(|other| other.id == one.id).unwrap()).collect()
    }

    fn having(bytes: &[u64]) -> Vec<Suspect> {
        bytes.iter().enumerate().map(|(number, bytes)| suspect(&number.to_string(), *bytes)).collect()
    }

    #[test]
    fn the_largest_end_until_the_rest_is_within_the_bound() {
        assert!(chosen(100, 300, &having(&[60, 40])).is_empty(), "what is not theirs is not their fault");
        assert_eq!(chosen(100, 300, &having(&[5, 250, 20])), [1]);
        assert_eq!(chosen(100, 300, &having(&[90, 80, 70, 30])), [0, 1]);
    }

    #[test]
    fn nobody_ends_for_more_than_there_is() {
        assert!(chosen(100, 90, &having(&[900, 20])).is_empty());
        assert_eq!(chosen(100, 150, &having(&[900, 20])), [0]);
    }

    #[test]
    fn a_tenant_with_many_small_ones_ends_before_another_with_a_larger_one() {
        let mut all: Vec<_> = (0..10).map(|_| suspect("crowd", 12)).collect();
        all.push(suspect("other", 50));
        let ended = chosen(100, 170, &all);
        assert!(ended.len() == 6 && ended.iter().all(|place| *place < 10), "{ended:?}");
    }

    proptest! {
        #[test]
        fn as_few_end_as_need_to_and_none_that_has_nothing(
            sizes in prop::collection::vec((0_u8..4, prop_oneof![Just(0), 0_u64..300]), 0..12),
            bound in 1_u64..400,
            used in 0_u64..1000,
            more in 0_u64..1000,
        ) {
            let all: Vec<_> = sizes.iter().map(|(tenant, bytes)| suspect(&tenant.to_string(), *bytes)).collect();
            let ended = choose(bound, used, all.clone());
            let bytes = |of: &[Suspect]| of.iter().map(|one| one.bytes).sum::<u64>();
            let there = bytes(&all).min(used);
            prop_assert!(ended.iter().all(|one| one.bytes > 0));
            prop_assert!(there.saturating_sub(bytes(&ended)) <= bound, "too much is left");
            if let Some((_, before)) = ended.split_last() {
                prop_assert!(there.saturating_sub(bytes(before)) > bound, "one ended without need");
            }
            let ids = |of: &[Suspect]| of.iter().map(|one| one.id.clone()).collect::<Vec<_>>();
            let with_more = choose(bound, used + more, all.clone());
            prop_assert!(ids(&with_more).starts_with(&ids(&ended)), "more that is used ends others");
            let with_room = choose(bound + more, used, all);
            prop_assert!(ids(&ended).starts_with(&ids(&with_room)), "more room ends others");
        }
    }

    #[test]
    fn what_stays_hidden_while_too_much_is_missing_is_due_at_the_third_look() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut hidden = Hidden::default();
        hidden.meet(&[7, 8], true, at(0));
        assert!(hidden.due(at(5000)).is_empty(), "once is no habit");
        hidden.meet(&[7, 8], true, at(10));
        assert!(hidden.due(at(5000)).is_empty(), "a look that follows at once tells nothing new");
        hidden.meet(&[7], true, at(1000));
        assert!(hidden.due(at(1500)).is_empty());
        assert_eq!(hidden.due(at(2000)), HashSet::from([7]), "8 was accepted");
        assert_eq!(hidden.again(), Some(at(2000)));
        hidden.meet(&[7], false, at(2000));
        assert!(hidden.due(at(9000)).is_empty() && hidden.again().is_none(), "nothing is missing any more");
    }
}
