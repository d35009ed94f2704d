//! The definition of the interface: cases that every provider passes.
//!
//! A provider's tests give a [`Subject`] to [`conformance!`](crate::conformance!) and get one test for each case. A case
//! that needs what the provider's [`Capabilities`] do not have says so and passes: it is the capabilities that are checked
//! then, by the case that nothing is pretended.

mod access;
mod alter;
mod command;
mod exec;
mod limits;
mod list;
mod pause;
mod process;
mod read;
mod snapshot;
mod stage;
mod stat;
mod state;
mod survive;
mod templates;
mod terminal;
mod trees;
mod unpack;
mod verdict;
mod volumes;
mod watch;
mod write;

use std::{sync::Arc, time::Duration};

use cabana_sandbox::{Capabilities, Enforced, Identities, Provider, SandboxPath, SandboxSpec, User};
use futures_util::future::BoxFuture;

use stage::Stage;
use verdict::Outcome;
pub use verdict::{Verdict, check, check_by_name, verdict};

/// Longer than any case takes on a slow and busy machine. What is not done by then hangs.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// The provider under test, and what its sandboxes hold.
pub trait Subject: Send + Sync {
    fn provider(&self) -> Arc<dyn Provider>;

    /// What sandboxes are made from. Its default user is [`user`](Self::user).
    fn spec(&self) -> SandboxSpec;

    /// An ordinary user with a home of its own; beside it there is root.
    fn user(&self) -> Person {
        Person { name: "user".into(), uid: 1000, home: "/home/user".into() }
    }

    /// How long to wait for what must come, such as an event. Only failures wait that long.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }
}

#[derive(Clone, Debug)]
pub struct Person {
    pub name: String,
    pub uid: u32,
    pub home: String,
}

impl Person {
    pub(crate) fn as_user(&self) -> Result<User, cabana_sandbox::Error> {
        Ok(User::new(self.name.clone())?)
    }

    pub(crate) fn home(&self) -> Result<SandboxPath, cabana_sandbox::Error> {
        Ok(SandboxPath::new(self.home.clone())?)
    }
}

/// What a case needs of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// Root beside the ordinary user.
    TwoUsers,
    Exec,
    /// Commands, and root beside the ordinary user.
    ExecTwoUsers,
    /// Commands whose whole tree can be ended.
    KillTree,
    /// A command's output from any position after a reattach.
    Replay,
    Connect,
    Pause,
    /// Commands, and a pause of them.
    PauseExec,
    /// A limit of the sandbox's own files.
    Disk,
    Inodes,
    /// Commands, and a limit of what they use.
    Memory,
    Pids,
    OpenFiles,
    /// Commands, and the certainty that they reach nobody.
    NetworkOff,
    /// Snapshots of stopped sandboxes.
    Snapshot,
    /// Snapshots of running ones, too.
    LiveSnapshot,
    /// Templates from archives.
    Templates,
    /// Directories that outlive sandboxes.
    Volumes,
    /// Commands that see them.
    VolumeExec,
    /// Commands, and views that change while they run.
    LateViews,
}

impl Needs {
    pub fn met_by(self, capabilities: &Capabilities) -> bool {
        let two_users = capabilities.identities != Identities::Single;
        let kept = |limit: Enforced| limit != Enforced::No;
        match self {
            Self::Nothing => true,
            Self::TwoUsers => two_users,
            Self::Exec => capabilities.exec,
            Self::ExecTwoUsers => capabilities.exec && two_users,
            Self::KillTree => capabilities.exec && kept(capabilities.kill_tree),
            Self::Replay => capabilities.exec && capabilities.replays_output,
            Self::Connect => capabilities.exec && capabilities.connect,
            Self::Pause => capabilities.pause,
            Self::PauseExec => capabilities.exec && capabilities.pause,
            Self::Disk => kept(capabilities.disk),
            Self::Inodes => kept(capabilities.inodes),
            Self::Memory => capabilities.exec && kept(capabilities.memory),
            Self::Pids => capabilities.exec && kept(capabilities.pids),
            Self::OpenFiles => capabilities.exec && kept(capabilities.open_files),
            Self::NetworkOff => capabilities.exec && kept(capabilities.network_off),
            Self::Snapshot => capabilities.snapshot,
            Self::LiveSnapshot => capabilities.snapshot && capabilities.pause,
            Self::Templates => capabilities.templates,
            Self::Volumes => capabilities.volumes,
            Self::VolumeExec => capabilities.exec && capabilities.volumes,
            Self::LateViews => capabilities.exec && capabilities.volumes && capabilities.late_views,
        }
    }
}

pub struct Case {
    pub name: &'static str,
    pub needs: Needs,
    run: fn(Arc<Stage>) -> BoxFuture<'static, Outcome>,
}

/// The list of cases, as data and as a macro that makes a test of each.
macro_rules! suite {
    ($dollar:tt $($module:ident($needs:ident) { $($case:ident,)* })*) => {
        pub fn cases() -> &'static [Case] {
            static CASES: &[Case] = &[$($(
                Case { name: stringify!($case), needs: Needs::$needs, run: |stage| Box::pin($module::$case(stage)) },
            )*)*];
            CASES
        }

        /// One test for each case. The expression makes the subject; it may await.
        ///
        /// ```ignore
        /// cabana_testkit::conformance!(MySubject::open().await);
        /// ```
        #[macro_export]
        macro_rules! conformance {
            ($dollar subject:expr) => {$($(
                #[test]
                fn $case() {
                    $dollar crate::conformance::check_by_name(stringify!($case), async { $dollar subject });
                }
            )*)*};
        }
    };
}

suite! { $
    state(Nothing) {
        create_is_idempotent_by_id,
        twenty_creates_of_one_id_make_one_sandbox,
        create_of_a_stopped_one_is_an_error,
        two_sandboxes_share_no_files,
        a_template_that_is_not_there_is_named,
        the_handle_says_its_id_and_its_defaults,
        a_created_one_is_listed_as_running,
        a_stopped_one_is_listed_as_stopped,
        attach_says_what_became_of_it,
        start_of_an_absent_one_is_no_sandbox,
        start_of_a_running_one_is_that_one,
        stop_twice_is_ok,
        stop_keeps_content_modes_links_and_tags_over_rounds,
        destroy_removes_and_twice_is_ok,
        what_is_not_enforced_is_refused_by_name,
        what_cannot_be_done_is_unsupported_and_not_pretended,
        a_stopped_ones_old_handle_is_gone,
        a_destroyed_ones_handle_is_gone,
    }
    state(TwoUsers) {
        stop_keeps_owners,
        the_specs_user_is_the_default,
    }
    pause(Pause) {
        a_paused_one_is_listed_and_attached_as_paused,
        start_resumes_a_paused_one,
        pause_twice_is_ok,
        only_what_runs_is_paused,
        the_files_of_a_paused_one_are_there,
        a_paused_one_can_be_stopped_and_destroyed,
    }
    pause(PauseExec) {
        a_paused_one_takes_no_command,
        what_is_paused_stands_still_and_goes_on_where_it_was,
    }
    limits(Nothing) {
        absurd_limits_are_refused_and_change_nothing,
        what_is_not_enforced_is_refused_at_run_time_too,
    }
    limits(Disk) {
        a_write_over_the_disk_limit_is_no_space,
        what_is_removed_makes_room,
        a_disk_limit_changes_at_run_time_and_stays,
    }
    limits(Inodes) {
        too_many_files_are_no_space,
    }
    limits(Memory) {
        a_command_over_the_memory_limit_is_out_of_memory,
    }
    limits(Pids) {
        more_processes_than_allowed_are_refused,
    }
    limits(OpenFiles) {
        open_files_are_limited_for_commands_that_begin,
    }
    limits(NetworkOff) {
        without_a_network_the_loopback_works_and_nothing_else,
    }
    stat(Nothing) {
        xb_04_missing_path_is_not_found,
        xb_06_stat_says_kind_size_mode_and_time,
        xb_06_owners_are_named,
        a_path_through_a_file_is_not_directory,
        stat_of_a_link_is_of_the_link,
        a_links_text_is_kept_byte_for_byte,
        a_links_target_is_where_it_leads_in_the_end,
        a_dangling_link_has_no_target,
        a_circle_of_links_has_no_target_and_cannot_be_passed,
        dot_dot_in_a_link_stays_below_the_root,
        names_that_are_not_utf_8_round_trip,
        names_of_255_bytes_are_names,
    }
    list(Nothing) {
        list_shows_every_entry_with_its_path,
        list_shows_links_as_links,
        list_of_five_thousand_entries_is_whole,
        list_follows_a_link_to_a_directory,
        list_of_a_file_is_not_directory,
    }
    read(Nothing) {
        read_gives_the_whole_file_and_its_state,
        a_span_is_exactly_what_was_asked_for,
        a_span_beyond_the_end_is_empty,
        xb_07_reading_over_the_cap_is_too_large_before_a_byte,
        xb_07_a_file_of_exactly_the_cap_is_read,
        read_of_a_directory_is_directory,
        read_follows_links,
        a_reader_keeps_the_file_that_it_opened,
    }
    write(Nothing) {
        xb_05_write_makes_no_parents,
        xb_07_over_the_cap_is_an_error_and_nothing_is_written,
        xb_07_over_the_cap_with_a_known_length_is_refused_at_once,
        replace_makes_a_new_file_0644,
        replace_keeps_the_mode_of_what_is_there,
        replace_shows_nothing_before_its_end,
        perm_names_the_mode,
        in_place_truncates_and_keeps_the_mode,
        append_adds_at_the_end,
        create_new_refuses_what_is_there,
        an_error_in_the_body_undoes_a_replace,
        an_error_in_the_body_of_an_append_loses_nothing,
        an_error_in_the_body_undoes_a_create,
        another_length_than_promised_undoes_it,
        a_failed_write_leaves_nothing_behind,
        write_follows_links_to_the_target,
        write_onto_a_directory_is_directory,
        a_write_below_a_file_is_not_directory,
        eight_mebibytes_in_odd_chunks_round_trip,
        an_empty_body_makes_an_empty_file,
        the_answer_to_a_write_is_the_new_state,
    }
    write(TwoUsers) {
        replace_keeps_the_owner_of_what_is_there,
    }
    alter(Nothing) {
        make_dir_sets_the_mode,
        make_dir_of_what_is_there_exists,
        make_dir_makes_no_parents,
        rename_moves_files_and_directories,
        rename_replaces_a_file,
        rename_replaces_no_full_directory,
        rename_into_itself_is_refused,
        rename_of_a_link_moves_the_link,
        remove_takes_files_links_and_empty_directories,
        remove_of_a_full_directory_is_not_empty,
        remove_of_nothing_is_not_found,
        remove_all_takes_the_tree_and_follows_no_link,
        remove_all_takes_a_file_too_and_not_nothing,
        set_mode_masks_to_7777,
        symlink_refuses_what_is_there,
        set_tags_replaces_the_set,
    }
    alter(TwoUsers) {
        set_owner_takes_a_name_or_a_number,
        set_owner_to_nobody_known_is_unknown_user,
    }
    access(TwoUsers) {
        a_secret_file_is_denied_to_others,
        a_closed_directory_is_denied_to_others,
        root_may_do_everything,
        what_is_made_with_roots_rights_is_the_users_own,
        only_the_owner_sets_a_mode,
        only_root_gives_files_away,
        in_a_sticky_directory_only_owners_remove,
    }
    access(Nothing) {
        new_files_belong_to_who_made_them,
        the_default_user_is_the_ordinary_one,
        an_unknown_user_is_named_on_use,
        a_user_may_be_a_number,
    }
    watch(Nothing) {
        watch_is_armed_when_it_returns,
        watch_tells_create_write_chmod_and_remove,
        watch_tells_a_rename_as_one,
        watch_below_sees_into_new_directories,
        watch_here_does_not_see_below,
        watch_shows_no_temporary_of_a_replace,
        watch_of_a_file_that_is_written_in_place_tells_a_write,
        watch_of_nothing_is_not_found,
        a_watch_ends_with_its_sandbox,
    }
    trees(Nothing) {
        xb_09_walk_gives_files_only_and_follows_no_links,
        xb_09_walk_of_a_missing_directory_is_an_error,
        walk_tree_gives_each_directory_before_what_it_holds_and_files_with_their_bytes,
        xb_09_copy_flattens_links,
        xb_09_copy_of_a_circle_is_an_error,
        make_dirs_makes_what_is_missing,
        search_finds_entries_by_globs,
        search_finds_lines_with_their_numbers,
        search_honours_ignore_files_when_asked,
        search_ends_at_max_hits,
        search_refuses_a_bad_pattern,
        search_below_a_missing_directory_is_not_found,
        pack_and_unpack_round_trip,
        a_packed_archive_is_a_tar,
    }
    unpack(Nothing) {
        unpack_reads_ustar_gnu_and_pax,
        unpack_into_a_missing_directory_is_not_found,
        unpack_refuses_absolute_names,
        unpack_refuses_dot_dot,
        unpack_writes_through_no_link,
        unpack_refuses_a_hard_link_out,
        unpack_refuses_a_truncated_archive,
        unpack_refuses_what_is_no_archive,
    }
    exec(Exec) {
        xb_01_argv_is_run_as_it_is,
        xb_01_a_shell_script_is_run_by_a_shell,
        the_exit_code_is_told,
        a_deadly_signal_is_told,
        stdout_and_stderr_keep_their_channels,
        positions_have_no_gaps,
        env_is_data,
        home_user_and_path_are_set,
        the_working_directory_is_what_was_asked_for,
        a_missing_working_directory_is_named,
        a_missing_program_is_named,
        what_no_program_can_be_given_is_invalid,
        an_unknown_user_of_a_command_is_named,
        stdin_round_trips_and_ends,
        stdin_is_closed_when_there_is_none,
        a_slow_reader_loses_nothing,
        output_is_kept_at_both_ends,
        fifty_commands_at_once,
        what_a_command_writes_the_files_show,
        what_the_files_write_a_command_reads,
    }
    exec(ExecTwoUsers) {
        a_command_runs_as_the_user_who_was_named,
    }
    process(Exec) {
        a_background_process_does_not_hold_the_command,
        a_background_process_may_go_on_writing,
        there_is_one_exit_and_then_the_end,
        dropping_a_process_kills_nothing,
        a_running_command_is_found_again,
        an_ended_command_is_found_again_until_it_is_forgotten,
        an_unknown_command_is_missing,
        one_id_runs_once,
        processes_lists_what_runs,
        a_signal_reaches_the_leader,
        a_signal_to_an_ended_command_is_ok,
        stop_ends_every_process,
        a_commands_stream_ends_with_its_sandbox,
    }
    process(KillTree) {
        a_timeout_ends_the_whole_tree_and_keeps_the_output,
        a_signal_to_the_tree_reaches_daemons,
        a_signal_to_the_tree_reaches_what_was_left_behind,
        commands_run_after_a_tree_was_killed,
    }
    snapshot(Snapshot) {
        a_fork_begins_with_the_files_of_the_sandbox,
        a_snapshot_knows_nothing_of_what_comes_after_it,
        forks_share_no_changes,
        a_snapshot_outlives_its_sandbox,
        a_snapshot_leaves_a_stopped_one_stopped,
        a_snapshot_of_an_absent_one_is_no_sandbox,
        one_name_is_one_snapshot,
        a_snapshot_is_listed_until_it_is_removed,
        what_was_saved_is_restored_and_stopped,
        nothing_is_restored_onto_one_that_is_there,
        half_a_saved_one_restores_nothing,
        a_shelved_one_is_absent_until_it_is_restored,
    }
    snapshot(LiveSnapshot) {
        a_running_one_goes_on_after_its_snapshot,
        a_paused_one_stays_paused_after_its_snapshot,
    }
    templates(Templates) {
        a_template_from_an_archive_is_what_sandboxes_begin_with,
        what_its_maker_wants_is_in_the_template,
        a_templates_name_is_used_once,
        what_is_no_whole_archive_makes_no_template,
        too_large_an_archive_makes_no_template,
        a_template_is_listed_until_it_is_removed,
        a_template_stays_while_sandboxes_stand_on_it,
        a_template_stays_for_one_that_is_shelved,
    }
    volumes(Volumes) {
        a_volume_is_listed_until_it_is_removed,
    }
    volumes(VolumeExec) {
        a_volume_is_seen_by_many_and_outlives_them,
        a_volume_stays_while_sandboxes_have_it,
        a_stopped_one_has_other_views_from_its_next_start_on,
    }
    volumes(LateViews) {
        a_view_comes_and_goes_while_a_sandbox_runs,
        views_that_do_not_change_are_not_disturbed,
        a_refused_change_of_views_changes_nothing,
    }
    survive(Replay) {
        output_is_replayed_from_any_position,
    }
    survive(Connect) {
        connect_reaches_a_port_inside,
        connect_to_a_closed_port_is_an_error,
    }
    terminal(Exec) {
        a_terminal_is_a_terminal,
        a_terminal_has_the_size_it_was_given,
        a_terminal_can_be_resized,
        what_is_typed_arrives,
        control_c_interrupts,
    }
}
