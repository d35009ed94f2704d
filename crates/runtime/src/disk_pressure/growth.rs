//! What sandboxes and volumes of one tenant have taken of a disk: a pure account of what was measured.

use std::collections::{HashMap, HashSet};

use cabana_model::{SandboxId, VolumeId};
use cabana_sandbox::{Stored, StoredParts};

use crate::space::{Room, Supply};

/// Of what is left of a disk one tenant takes this part at most; and what no tenant has to ask for, since deleting takes some room too.
pub(super) const SHARE: u64 = 8;
pub(super) const SLACK: Stored = Stored { bytes: 1 << 20, inodes: 64 };
/// As much counts for each name.
const NAME: u64 = 4096;

/// What is measured by itself: a volume is filled by any sandbox that sees it, and stays full when those are gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum What {
    Own(SandboxId),
    Volume(VolumeId),
}

/// What was taken since the least that was measured of each.
#[derive(Default)]
pub(super) struct Growth {
    parts: HashMap<What, Grown>,
    sandboxes: HashMap<SandboxId, Seen>,
    /// How many there were.
    looks: u64,
}

struct Grown {
    least: Stored,
    last: Stored,
    /// Since the look before.
    grows: bool,
    /// By one that had run.
    look: u64,
}

/// A sandbox, as it was when it was last measured.
struct Seen {
    look: u64,
    run: u64,
    /// Since the look before.
    has_run: bool,
    is_late: bool,
    volumes: Vec<VolumeId>,
    /// Its tenant has heard that its commands end.
    told: bool,
}

impl Growth {
    /// What a sandbox had when it started or stopped, between two looks. Where something is known of it, or of its volumes, it counts
    /// from further back.
    pub(super) fn note_between(&mut self, id: SandboxId, parts: StoredParts) {
        let mut note = |what, now| {
            let grown = self.parts.entry(what).or_insert(Grown { least: now, last: now, grows: false, look: 0 });
            (grown.least, grown.last) = (smaller(grown.least, now), now);
        };
        note(What::Own(id.clone()), parts.own);
        let volumes = parts.volumes.into_iter().map(|(volume, now)| {
            note(What::Volume(volume), now);
            volume
        });
        let volumes = volumes.collect();
        let seen = Seen { look: 0, run: parts.run, has_run: false, is_late: false, volumes, told: false };
        self.sandboxes.entry(id).or_insert(seen);
    }

    pub(super) fn begin_look(&mut self) {
        self.looks += 1;
        self.parts.values_mut().for_each(|grown| grown.grows = false);
    }

    /// What was measured in this look, as it comes. Whether something of it is not as it was.
    pub(super) fn note(&mut self, measured: impl IntoIterator<Item = (SandboxId, StoredParts)>) -> bool {
        let mut is_changed = false;
        let mut volumes: HashMap<VolumeId, (bool, Stored)> = HashMap::new();
        for (id, parts) in measured {
            let before = self.sandboxes.get(&id);
            let has_run = before.is_none_or(|seen| seen.run != parts.run);
            let seen = Seen {
                look: self.looks,
                run: parts.run,
                has_run,
                is_late: parts.is_late,
                volumes: parts.volumes.iter().map(|(volume, _)| *volume).collect(),
                told: before.is_some_and(|seen| seen.told),
            };
            self.sandboxes.insert(id.clone(), seen);
            for (volume, now) in parts.volumes {
                let (ran, most) = volumes.entry(volume).or_insert((has_run, now));
                if has_run && !*ran {
                    (*ran, *most) = (true, now); // what is known by one that did not run is older
                } else if has_run == *ran {
                    *most = larger(*most, now);
                }
            }
            is_changed |= self.note_part(What::Own(id), parts.own);
        }
        for (volume, (has_run, now)) in volumes {
            let what = What::Volume(volume);
            match self.parts.get(&what) {
                Some(_) if !has_run => {}
                // Another sandbox that had run came before in this look.
                Some(grown) if grown.look == self.looks => is_changed |= self.note_part(what, larger(grown.last, now)),
                _ => is_changed |= self.note_part(what.clone(), now),
            }
            if let Some(grown) = self.parts.get_mut(&What::Volume(volume)).filter(|_| has_run) {
                grown.look = self.looks;
            }
        }
        is_changed
    }

    fn note_part(&mut self, what: What, now: Stored) -> bool {
        let grown = self.parts.entry(what).or_insert(Grown { least: now, last: now, grows: false, look: 0 });
        grown.grows |= now.bytes > grown.last.bytes || now.inodes > grown.last.inodes;
        let is_changed = now != grown.last;
        grown.last = now;
        grown.least = smaller(grown.least, now);
        is_changed
    }

    /// From here on it counts anew.
    pub(super) fn begin(&mut self) {
        self.parts.values_mut().for_each(|grown| grown.least = grown.last);
        self.sandboxes.values_mut().for_each(|seen| seen.told = false);
    }

    /// The number of the look in which it was measured last: 0 if it was in none.
    pub(super) fn last_look(&self, id: &SandboxId) -> u64 {
        self.sandboxes.get(id).map_or(0, |seen| seen.look)
    }

    /// Sandboxes that count, and are none of these.
    pub(super) fn resting(&self, live: &HashSet<SandboxId>) -> Vec<SandboxId> {
        self.sandboxes.keys().filter(|id| !live.contains(*id)).cloned().collect()
    }

    /// It was deleted, with its files.
    pub(super) fn forget_sandbox(&mut self, id: SandboxId) {
        self.sandboxes.remove(&id);
        self.parts.remove(&What::Own(id));
    }

    pub(super) fn forget_volume(&mut self, volume: VolumeId) {
        self.parts.remove(&What::Volume(volume));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.sandboxes.is_empty()
    }

    /// With its names it is no more than this: what of it was removed by a client that is none of its sandboxes.
    pub(super) fn note_most(&mut self, volume: VolumeId, with_names: u64) {
        if let Some(grown) = self.parts.get_mut(&What::Volume(volume)) {
            grown.last = smaller(grown.last, Stored { bytes: with_names, inodes: with_names / NAME });
            grown.least = smaller(grown.least, grown.last);
        }
    }

    /// Volumes that count, and that were measured by no sandbox in the last look.
    pub(super) fn unseen_volumes(&self) -> Vec<VolumeId> {
        let now = self.sandboxes.values().filter(|seen| seen.look == self.looks);
        let seen: HashSet<VolumeId> = now.flat_map(|seen| seen.volumes.iter().copied()).collect();
        let volumes = self.parts.keys().filter_map(|what| match what {
            What::Volume(volume) => Some(*volume),
            What::Own(_) => None,
        });
        volumes.filter(|volume| !seen.contains(volume)).collect()
    }

    pub(super) fn has_grown(&self, volume: VolumeId) -> bool {
        self.parts.get(&What::Volume(volume)).is_some_and(|grown| grown.last != grown.least)
    }

    pub(super) fn taken(&self) -> Stored {
        self.parts.values().fold(Stored::default(), |sum, grown| Stored {
            bytes: sum.bytes.saturating_add(grown.last.bytes - grown.least.bytes),
            inodes: sum.inodes.saturating_add(grown.last.inodes - grown.least.inodes),
        })
    }

    /// Whether it has taken more than a tenant's share of what is left; or it is not known in time what it takes.
    pub(super) fn is_over(&self, room: Room) -> bool {
        let takes_much =
            |taken: u64, supply: Supply, slack: u64| supply.is_low() && taken > (supply.free / SHARE).max(slack);
        let taken = self.taken();
        takes_much(taken.bytes, room.bytes, SLACK.bytes)
            || room.inodes.is_some_and(|inodes| takes_much(taken.inodes, inodes, SLACK.inodes))
            || (room.is_low() && self.has_late())
    }

    /// Whether some have run and cannot be measured: what they take is known too late.
    fn has_late(&self) -> bool {
        self.sandboxes.values().any(|seen| seen.look == self.looks && seen.is_late)
    }

    /// Whether something grows that it may write to, if its tenant took more than it needs to delete something. One that did not run
    /// has written nothing, and that is not known of one for whose measuring there was no time beside late ones of its tenant.
    pub(super) fn grows(&self, id: &SandboxId) -> bool {
        let Some(seen) = self.sandboxes.get(id).filter(|seen| seen.look == self.looks) else { return self.has_late() };
        let grows = |what: &What| self.parts.get(what).is_some_and(|grown| grown.grows);
        let fills = || seen.volumes.iter().any(|volume| grows(&What::Volume(*volume)));
        seen.is_late || grows(&What::Own(id.clone())) || (seen.has_run && fills())
    }

    /// True for the first time since it began to count.
    pub(super) fn mark_told(&mut self, id: &SandboxId) -> bool {
        self.sandboxes.get_mut(id).is_some_and(|seen| !std::mem::replace(&mut seen.told, true))
    }
}

fn larger(one: Stored, other: Stored) -> Stored {
    Stored { bytes: one.bytes.max(other.bytes), inodes: one.inodes.max(other.inodes) }
}

fn smaller(one: Stored, other: Stored) -> Stored {
    Stored { bytes: one.bytes.min(other.bytes), inodes: one.inodes.min(other.inodes) }
}

/// As it counts to what a tenant stores.
pub(super) fn with_names(stored: Stored) -> u64 {
    stored.bytes.saturating_add(stored.inodes.saturating_mul(NAME))
}

#[cfg(test)]
mod tests {
    use super::{
        super::test_room::{MIB, room},
        *,
    };

    fn id(name: &str) -> SandboxId {
        SandboxId::new(name.repeat(16)).unwrap()
    }

    fn stored(mib: u64, inodes: u64) -> Stored {
        Stored { bytes: mib * MIB, inodes }
    }

    fn look(growth: &mut Growth, rows: Vec<(SandboxId, StoredParts)>) -> bool {
        growth.begin_look();
        growth.note(rows)
    }

    fn own(name: &str, mib: u64, inodes: u64) -> (SandboxId, StoredParts) {
        (id(name), StoredParts { own: stored(mib, inodes), ..StoredParts::default() })
    }

    fn with_volumes(name: &str, run: u64, volumes: &[(VolumeId, u64)]) -> (SandboxId, StoredParts) {
        let volumes = volumes.iter().map(|(volume, mib)| (*volume, stored(*mib, 5))).collect();
        (id(name), StoredParts { own: stored(1, 5), volumes, run, is_late: false })
    }

    fn volumes<const N: usize>() -> [VolumeId; N] {
        std::array::from_fn(|_| VolumeId::from(uuid::Uuid::new_v4()))
    }

    #[test]
    fn a_tenant_that_took_an_eighth_of_what_is_left_is_over_until_it_deletes() {
        let mut growth = Growth::default();
        look(&mut growth, vec![own("a", 90_000, 5), own("b", 1, 5)]);
        assert!(!growth.is_over(room(1000, 9_000)), "what was there before is no growth");
        look(&mut growth, vec![own("a", 90_070, 5), own("b", 71, 5)]);
        assert!(growth.is_over(room(1000, 9_000)), "both together");
        assert!(!growth.is_over(room(2000, 20_000)), "there is room");
        assert!(["a", "b"].iter().all(|name| growth.grows(&id(name))));
        look(&mut growth, vec![own("a", 90_001, 5)]);
        assert!(!growth.is_over(room(1000, 9_000)), "it has deleted enough");
        assert!(growth.is_over(room(100, 20_000)), "the less is left the smaller a share");
        assert!(!growth.grows(&id("a")) && !growth.grows(&id("b")));
        assert!(growth.mark_told(&id("a")) && !growth.mark_told(&id("a")));
    }

    #[test]
    fn names_count_where_inodes_are_few() {
        let mut growth = Growth::default();
        look(&mut growth, vec![own("a", 1, 5)]);
        look(&mut growth, vec![own("a", 1, 1500)]);
        assert!(growth.is_over(room(1000, 9_000)) && !growth.is_over(room(1000, 20_000)));
    }

    #[test]
    fn what_a_sandbox_wrote_between_its_start_and_its_first_look_counts() {
        let [volume] = volumes();
        let low = room(1000, 20_000);
        let (mut without, mut with) = (Growth::default(), Growth::default());
        with.note_between(id("a"), with_volumes("a", 1, &[(volume, 0)]).1);
        for growth in [&mut without, &mut with] {
            look(growth, vec![with_volumes("a", 2, &[(volume, 200)])]);
        }
        assert!(!without.is_over(low) && with.is_over(low));
        assert!(!without.grows(&id("a")) && with.grows(&id("a")));
        // Started again it is no less.
        with.note_between(id("a"), with_volumes("a", 3, &[(volume, 200)]).1);
        with.note_between(id("b"), with_volumes("b", 4, &[(volume, 200)]).1);
        assert_eq!(with.taken().bytes, 200 * MIB);
    }

    #[test]
    fn what_sandboxes_wrote_that_no_look_has_seen_counts() {
        let mut growth = Growth::default();
        for name in ["a", "b", "c"] {
            growth.note_between(id(name), own(name, 10, 5).1);
            growth.note_between(id(name), own(name, 70, 5).1);
        }
        growth.begin_look();
        assert!(growth.is_over(room(1000, 20_000)) && growth.taken().bytes == 180 * MIB);
        growth.note_between(id("a"), own("a", 5, 5).1);
        assert!(!growth.is_over(room(1000, 20_000)), "it has deleted some");
    }

    #[test]
    fn what_is_measured_in_parts_of_a_look_is_as_if_it_were_measured_at_once() {
        let [volume] = volumes();
        let mut growth = Growth::default();
        look(&mut growth, vec![with_volumes("a", 0, &[(volume, 1)]), with_volumes("b", 1, &[(volume, 1)])]);
        growth.begin_look();
        assert!(growth.note([with_volumes("a", 2, &[(volume, 100)])]));
        assert!(growth.grows(&id("a")), "it is known before the others are measured");
        growth.note([with_volumes("b", 3, &[(volume, 90)])]);
        growth.note([own("c", 1, 5)]);
        assert_eq!(growth.taken().bytes, 99 * MIB, "the most that was seen");
        assert!(growth.grows(&id("a")) && growth.grows(&id("b")) && !growth.grows(&id("c")));
    }

    #[test]
    fn what_a_volume_took_stays_when_another_is_in_its_place_and_when_its_sandbox_is_gone() {
        let mut growth = Growth::default();
        let volumes: [_; 3] = volumes();
        let low = room(1000, 20_000);
        look(&mut growth, vec![with_volumes("a", 0, &[(volumes[0], 0)])]);
        look(&mut growth, vec![with_volumes("a", 1, &[(volumes[0], 100)])]);
        look(&mut growth, vec![with_volumes("a", 2, &[(volumes[1], 0)])]);
        assert!(!growth.is_over(low));
        look(&mut growth, vec![with_volumes("a", 3, &[(volumes[1], 100)])]);
        assert!(growth.is_over(low), "both together");
        look(&mut growth, vec![with_volumes("b", 9, &[(volumes[2], 0)])]);
        assert!(growth.is_over(low));
        assert_eq!(growth.unseen_volumes().len(), 2);
        assert!(growth.has_grown(volumes[0]) && !growth.has_grown(volumes[2]));
        growth.note_most(volumes[0], MIB);
        assert!(!growth.is_over(low), "most of it was removed");
    }

    #[test]
    fn what_is_deleted_leaves_nothing() {
        let mut growth = Growth::default();
        for number in 0..100 {
            let name = format!("{number:02}").repeat(8);
            let (sandbox, [volume]) = (SandboxId::new(name).unwrap(), volumes());
            let parts =
                |mib| StoredParts { volumes: vec![(volume, stored(mib, 5))], run: mib, ..StoredParts::default() };
            growth.note_between(sandbox.clone(), parts(0));
            look(&mut growth, vec![(sandbox.clone(), parts(1))]);
            assert!(growth.resting(&HashSet::from([sandbox.clone()])).is_empty(), "it is live");
            assert_eq!(growth.resting(&HashSet::new()), std::slice::from_ref(&sandbox));
            growth.forget_sandbox(sandbox);
            assert_eq!(growth.unseen_volumes(), [volume]);
            assert_eq!(growth.taken().bytes, MIB, "what is in a volume counts until that is removed");
            growth.forget_volume(volume);
        }
        assert!(growth.is_empty());
    }

    #[test]
    fn a_volume_counts_once_and_who_did_not_run_has_not_filled_it() {
        let mut growth = Growth::default();
        let [volume] = volumes();
        let rows = |runs: [u64; 3], mib: [u64; 3]| {
            let rows = ["a", "b", "c"].into_iter().zip(runs).zip(mib);
            rows.map(|((name, run), mib)| with_volumes(name, run, &[(volume, mib)])).collect::<Vec<_>>()
        };
        look(&mut growth, rows([0, 1, 2], [1, 1, 1]));
        look(&mut growth, rows([0, 3, 2], [1, 100, 1]));
        assert_eq!(growth.taken().bytes, 99 * MIB);
        assert_eq!(["a", "b", "c"].map(|name| growth.grows(&id(name))), [false, true, false]);
        assert!(!look(&mut growth, rows([0, 3, 2], [1, 100, 1])) && !growth.grows(&id("b")));
        // What was removed counts though others know of more.
        look(&mut growth, rows([4, 3, 2], [2, 100, 1]));
        assert_eq!(growth.taken().bytes, MIB);
    }

    #[test]
    fn a_tenant_whose_sandbox_has_run_and_cannot_be_measured_is_over_where_the_disk_is_low() {
        let mut growth = Growth::default();
        let (mut late, other) = (with_volumes("a", 0, &[]), with_volumes("b", 1, &[]));
        look(&mut growth, vec![late.clone(), other.clone()]);
        late.1.is_late = true;
        look(&mut growth, vec![late]);
        assert!(!growth.is_over(room(2000, 20_000)), "there is room");
        assert!(growth.is_over(room(1000, 20_000)));
        assert!(["a", "b", "c"].iter().all(|name| growth.grows(&id(name))), "what the others did meanwhile is unknown");
        look(&mut growth, vec![with_volumes("a", 5, &[]), other]);
        assert!(!growth.is_over(room(1000, 20_000)));
        assert!(["a", "b", "c"].iter().all(|name| !growth.grows(&id(name))));
    }
}
