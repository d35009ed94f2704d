//! A sandbox's way through its life, as a pure decision: which states there are, what leads from one to the next, and what
//! has to be done on the way.
//!
//! ```text
//!                 ┌──────── failed ◀─────────┐
//!                 ▼                          │ (its files are gone)
//!  (claimed) ▶ provisioning ──▶ running ◀── waking ◀── restoring ◀── archived
//!                               │    │        ▲ ▲                       ▲
//!                               ▼    ▼        │ │                       │
//!                         pausing  stopping   │ │                       │
//!                               │    │        │ │                       │
//!                               ▼    ▼        │ │                       │
//!                           paused   stopped ─┘─┘──▶ archiving ─────────┘
//!
//!  each of them ──▶ deleting ──▶ (no record)
//! ```
//!
//! What is written in `-ing` is an operation under way. Its phase is the next thing to do, and each of these can be done again
//! after a crash that left open whether it was done. All other states have no phase: nothing is owed.

use crate::record::states;

states! {
    /// Where a sandbox is in its life, as its record says.
    SandboxState {
        Provisioning = "provisioning",
        Running = "running",
        Pausing = "pausing",
        Paused = "paused",
        Stopping = "stopping",
        Stopped = "stopped",
        Waking = "waking",
        Archiving = "archiving",
        Archived = "archived",
        Restoring = "restoring",
        Deleting = "deleting",
        Failed = "failed",
    }
    /// The next thing to do of an operation.
    Phase {
        /// The provider makes it.
        Make = "make",
        Start = "start",
        /// The command that was to run inside after each start.
        AfterStart = "after_start",
        /// The one before each stop.
        BeforeStop = "before_stop",
        Stop = "stop",
        Pause = "pause",
        /// Its files go to where archives are. What still runs of it ends first: a start that was said to have failed may have
        /// been one after all.
        Save = "save",
        /// They are there, and the provider's own go.
        Clear = "clear",
        /// They come back.
        Restore = "restore",
        /// They are back, and the archive goes.
        DropSaved = "drop_saved",
        /// All that the provider has of it.
        Destroy = "destroy",
        /// All that is saved of it; its record goes next.
        Forget = "forget",
    }
    /// What a sandbox is asked to become.
    Operation {
        /// Running, from wherever it is.
        Wake = "wake",
        Stop = "stop",
        Pause = "pause",
        Archive = "archive",
        Delete = "delete",
    }
}

/// Where it is, and what is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Life {
    pub state: SandboxState,
    pub phase: Option<Phase>,
}

/// Which commands inside go with a start and a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooked {
    pub after_start: bool,
    pub before_stop: bool,
}

/// What the provider says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reality {
    Running,
    Paused,
    Stopped,
    Absent,
    /// The provider has nothing of it, and its archive is there.
    Saved,
}

/// What doing one thing leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Becomes(Life),
    /// There is no record any more.
    Gone,
}

impl SandboxState {
    /// Nothing is under way.
    pub fn is_settled(self) -> bool {
        use SandboxState::{Archived, Failed, Paused, Running, Stopped};
        matches!(self, Running | Paused | Stopped | Archived | Failed)
    }
}

impl Life {
    /// A record that was just claimed.
    pub const CLAIMED: Self = Self { state: SandboxState::Provisioning, phase: Some(Phase::Make) };

    /// One that is to go.
    pub const DOOMED: Self = Self { state: SandboxState::Deleting, phase: Some(Phase::Destroy) };

    fn settled(state: SandboxState) -> Self {
        Self { state, phase: None }
    }

    fn at(state: SandboxState, phase: Phase) -> Self {
        Self { state, phase: Some(phase) }
    }

    fn started(state: SandboxState, hooked: Hooked) -> Self {
        match hooked.after_start {
            true => Self::at(state, Phase::AfterStart),
            false => Self::settled(SandboxState::Running),
        }
    }

    /// Whether the two can be written in one record.
    pub fn is_sound(self) -> bool {
        use Phase as P;
        use SandboxState as S;
        match self.phase {
            None => self.state.is_settled(),
            Some(phase) => matches!(
                (self.state, phase),
                (S::Provisioning, P::Make | P::AfterStart)
                    | (S::Waking, P::Start | P::AfterStart)
                    | (S::Stopping, P::BeforeStop | P::Stop)
                    | (S::Pausing, P::Pause)
                    | (S::Archiving, P::Save | P::Clear)
                    | (S::Restoring, P::Restore | P::DropSaved)
                    | (S::Deleting, P::Destroy | P::Forget)
            ),
        }
    }

    /// Whether there is anything that makes the one of the other.
    pub fn leads_to(self, next: Self) -> bool {
        use Reality as R;
        const REALITIES: [R; 5] = [R::Running, R::Paused, R::Stopped, R::Absent, R::Saved];
        let hooks = [false, true]
            .into_iter()
            .flat_map(|after_start| [false, true].map(|before_stop| Hooked { after_start, before_stop }));
        self.failed() == Some(next)
            || hooks.into_iter().any(|hooked| {
                self.done(hooked) == Some(Then::Becomes(next))
                    || Operation::ALL.iter().any(|operation| self.begin(*operation, hooked) == Some(next))
                    || REALITIES.iter().any(|reality| self != next && self.found(*reality, hooked) == next)
            })
    }

    /// Where an operation begins. `None`: there is nothing to be done, or it cannot be done from here.
    pub fn begin(self, operation: Operation, hooked: Hooked) -> Option<Self> {
        use Operation as O;
        use SandboxState as S;
        match (operation, self.state) {
            (_, S::Deleting) => None,
            (O::Delete, _) => Some(Self::DOOMED),
            // One that is being made, started or brought back goes on where it is.
            (O::Wake, S::Running | S::Provisioning | S::Waking | S::Restoring) => None,
            // What was to end and has not is as good as stopped: a start finds out.
            (O::Wake, S::Paused | S::Stopped | S::Stopping | S::Pausing) => Some(Self::at(S::Waking, Phase::Start)),
            (O::Wake, S::Archiving) => match self.phase {
                Some(Phase::Save) => Some(Self::at(S::Waking, Phase::Start)),
                // The provider's own may be gone in part.
                _ => None,
            },
            (O::Wake, S::Archived) => Some(Self::at(S::Restoring, Phase::Restore)),
            (O::Wake, S::Failed) => Some(Self::CLAIMED),
            (O::Stop, S::Running) if hooked.before_stop => Some(Self::at(S::Stopping, Phase::BeforeStop)),
            (O::Stop, S::Running | S::Paused | S::Pausing) => Some(Self::at(S::Stopping, Phase::Stop)),
            (O::Pause, S::Running) => Some(Self::at(S::Pausing, Phase::Pause)),
            (O::Archive, S::Stopped) => Some(Self::at(S::Archiving, Phase::Save)),
            _ => None,
        }
    }

    /// What comes once the phase is done. `None`: nothing is under way.
    pub fn done(self, hooked: Hooked) -> Option<Then> {
        use SandboxState as S;
        Some(Then::Becomes(match self.phase? {
            Phase::Make | Phase::Start => Self::started(self.state, hooked),
            Phase::AfterStart => Self::settled(S::Running),
            Phase::BeforeStop => Self::at(S::Stopping, Phase::Stop),
            Phase::Stop => Self::settled(S::Stopped),
            Phase::Pause => Self::settled(S::Paused),
            Phase::Save => Self::at(S::Archiving, Phase::Clear),
            Phase::Clear => Self::settled(S::Archived),
            Phase::Restore => Self::at(S::Restoring, Phase::DropSaved),
            Phase::DropSaved => Self::at(S::Waking, Phase::Start),
            Phase::Destroy => Self::at(S::Deleting, Phase::Forget),
            Phase::Forget => return Some(Then::Gone),
        }))
    }

    /// What comes when the phase failed. `None`: it stays, and is tried again later.
    pub fn failed(self) -> Option<Self> {
        use SandboxState as S;
        match self.phase? {
            Phase::Make => Some(Self::settled(S::Failed)),
            Phase::Start => Some(Self::settled(S::Stopped)),
            // A command inside that fails holds nothing up.
            Phase::AfterStart => Some(Self::settled(S::Running)),
            Phase::BeforeStop => Some(Self::at(S::Stopping, Phase::Stop)),
            Phase::Pause => Some(Self::settled(S::Running)),
            Phase::Save => Some(Self::settled(S::Stopped)),
            Phase::Restore => Some(Self::settled(S::Archived)),
            Phase::Stop | Phase::Clear | Phase::DropSaved | Phase::Destroy | Phase::Forget => None,
        }
    }

    /// What is recorded, once it is known what became of it while nobody looked: after a crash, a restart of the machine, or
    /// when it died. Its operation goes on from there.
    pub fn found(self, reality: Reality, hooked: Hooked) -> Self {
        use Reality as R;
        use SandboxState as S;
        match (self.state, reality) {
            // These go on by themselves, whatever is there.
            (S::Deleting | S::Archived | S::Restoring, _) => self,
            (S::Archiving, _) if self.phase == Some(Phase::Clear) => self,
            (_, R::Saved) => Self::settled(S::Archived),
            (S::Archiving, R::Stopped) => Self::settled(S::Stopped), // what was saved of it is begun anew
            (S::Provisioning | S::Failed, R::Absent) => self,
            (_, R::Absent) => Self::settled(S::Failed),
            (S::Provisioning | S::Waking, R::Running) => match self.phase {
                Some(Phase::AfterStart) => self,
                _ => Self::started(self.state, hooked),
            },
            (S::Running | S::Stopping, R::Running) => self,
            (S::Stopping, R::Stopped) => Self::settled(S::Stopped),
            (_, R::Running) => Self::settled(S::Running),
            (_, R::Paused) => Self::settled(S::Paused),
            (_, R::Stopped) => Self::settled(S::Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REALITIES: [Reality; 5] =
        [Reality::Running, Reality::Paused, Reality::Stopped, Reality::Absent, Reality::Saved];

    fn hooked() -> impl Strategy<Value = Hooked> {
        (any::<bool>(), any::<bool>()).prop_map(|(after_start, before_stop)| Hooked { after_start, before_stop })
    }

    fn sound() -> Vec<Life> {
        let phases = Phase::ALL.iter().copied().map(Some).chain([None]);
        let all = phases.flat_map(|phase| SandboxState::ALL.iter().map(move |state| Life { state: *state, phase }));
        all.filter(|life| life.is_sound()).collect()
    }

    /// A sandbox and the world around it, where each thing that is done may be known or not.
    #[derive(Clone, Debug)]
    struct World {
        life: Option<Life>,
        reality: Reality,
        saved: bool,
        /// What the files hold: only a failed or new one may begin with nothing.
        written: bool,
        lost: bool,
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Ask(Operation),
        /// The phase is done; told is whether that is recorded.
        Do {
            told: bool,
        },
        Fail,
        Reboot,
        Recover,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => prop::sample::select(Operation::ALL).prop_map(Event::Ask),
            8 => any::<bool>().prop_map(|told| Event::Do { told }),
            2 => Just(Event::Fail),
            1 => Just(Event::Reboot),
            2 => Just(Event::Recover),
        ]
    }

    impl World {
        fn effect(&mut self, phase: Phase) {
            match phase {
                Phase::Make => {
                    if self.reality == Reality::Absent {
                        self.lost |= self.written;
                        self.written = true;
                    }
                    self.reality = Reality::Running;
                }
                Phase::Start => {
                    if self.reality == Reality::Absent {
                        self.lost |= self.written;
                    } else {
                        self.reality = Reality::Running;
                    }
                }
                Phase::AfterStart | Phase::BeforeStop => {}
                Phase::Stop => self.reality = Reality::Stopped,
                Phase::Pause => {
                    if self.reality == Reality::Running {
                        self.reality = Reality::Paused;
                    }
                }
                Phase::Save => {
                    if self.reality != Reality::Absent {
                        self.reality = Reality::Stopped;
                    }
                    self.saved = self.reality == Reality::Stopped;
                }
                Phase::Clear => {
                    self.lost |= self.written && !self.saved;
                    self.reality = Reality::Absent;
                }
                Phase::Restore => {
                    self.lost |= self.written && !self.saved && self.reality == Reality::Absent;
                    if self.reality == Reality::Absent {
                        self.reality = Reality::Stopped;
                    }
                }
                Phase::DropSaved => {
                    self.lost |= self.written && self.reality == Reality::Absent;
                    self.saved = false;
                }
                Phase::Destroy => self.reality = Reality::Absent,
                Phase::Forget => self.saved = false,
            }
        }

        fn happen(&mut self, event: Event, hooked: Hooked) {
            let Some(life) = self.life else { return };
            match event {
                Event::Ask(operation) => self.life = Some(life.begin(operation, hooked).unwrap_or(life)),
                Event::Do { told } => {
                    let Some(phase) = life.phase else { return };
                    self.effect(phase);
                    if told {
                        self.life = match life.done(hooked).unwrap() {
                            Then::Becomes(next) => Some(next),
                            Then::Gone => None,
                        };
                    }
                }
                Event::Fail => self.life = Some(life.failed().unwrap_or(life)),
                Event::Reboot => {
                    if self.reality != Reality::Absent {
                        self.reality = Reality::Stopped;
                    }
                    self.life = Some(life.found(self.reality, hooked));
                }
                Event::Recover => self.life = Some(life.found(self.reality, hooked)),
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_a_record_is_sound_its_files_are_kept_and_it_can_run_and_go(
            events in prop::collection::vec(event(), 0..40),
            hooked in hooked(),
        ) {
            let mut world =
                World { life: Some(Life::CLAIMED), reality: Reality::Absent, saved: false, written: false, lost: false };
            for event in events {
                let deleting = world.life.is_some_and(|life| life.state == SandboxState::Deleting);
                world.happen(event, hooked);
                prop_assert!(world.life.is_none_or(Life::is_sound), "{world:?}");
                prop_assert!(!deleting || world.life.is_none_or(|life| life.state == SandboxState::Deleting));
                prop_assert!(!world.lost || deleting, "{world:?} after {event:?}");
            }
            // From wherever it is, it comes to run in a few steps, and to an end.
            for goal in [Operation::Wake, Operation::Delete] {
                let mut world = world.clone();
                for _ in 0..12 {
                    world.happen(Event::Recover, hooked);
                    world.happen(Event::Ask(goal), hooked);
                    world.happen(Event::Do { told: true }, hooked);
                }
                match goal {
                    Operation::Wake => prop_assert!(world.life.is_none_or(|life| {
                        matches!(life.state, SandboxState::Running | SandboxState::Deleting)
                    }), "{world:?}"),
                    _ => prop_assert!(world.life.is_none() && world.reality == Reality::Absent && !world.saved, "{world:?}"),
                }
            }
        }
    }

    #[test]
    fn one_that_runs_though_its_start_failed_is_not_archived_without_its_files() {
        let mut world =
            World { life: Some(Life::CLAIMED), reality: Reality::Absent, saved: false, written: false, lost: false };
        let (told, untold) = (Event::Do { told: true }, Event::Do { told: false });
        let wake = [told, Event::Reboot, Event::Ask(Operation::Wake), untold, Event::Fail];
        for event in wake.into_iter().chain([Event::Ask(Operation::Archive), told, untold, told]) {
            world.happen(event, Hooked::default());
        }
        assert_eq!(world.life, Some(Life::settled(SandboxState::Archived)));
        assert!(world.saved && !world.lost && world.reality == Reality::Absent, "{world:?}");
    }

    #[test]
    fn each_state_is_left_by_some_way_and_only_what_is_settled_owes_nothing() {
        for life in sound() {
            assert_eq!(life.phase.is_none(), life.state.is_settled(), "{life:?}");
            let hooked = Hooked::default();
            let asked = Operation::ALL.iter().filter_map(|operation| life.begin(*operation, hooked)).count();
            assert!(asked > 0 || life.done(hooked).is_some(), "{life:?} is never left");
            for reality in REALITIES {
                assert!(life.found(reality, hooked).is_sound(), "{life:?} {reality:?}");
            }
            assert!(life.failed().is_none_or(Life::is_sound), "{life:?}");
        }
    }

    #[test]
    fn names_read_back() {
        assert!(SandboxState::ALL.iter().all(|state| SandboxState::parse(state.as_str()) == Some(*state)));
        assert!(Phase::ALL.iter().all(|phase| Phase::parse(phase.as_str()) == Some(*phase)));
        assert_eq!(SandboxState::parse("Running"), None);
    }
}
