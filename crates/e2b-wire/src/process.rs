//! The messages of `process.Process`: commands, their input, output and end.
//!
//! `Start` and `Connect` answer with a stream of [`ProcessEvent`]s: the start first, then data, then one end. `StreamInput` takes
//! a stream. All else is one message each way; a method that has nothing to say answers [`Empty`].

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::proto::{choices, enums, messages, oneofs};

pub const LIST: &str = "/process.Process/List";
pub const START: &str = "/process.Process/Start";
pub const CONNECT: &str = "/process.Process/Connect";
pub const UPDATE: &str = "/process.Process/Update";
pub const STREAM_INPUT: &str = "/process.Process/StreamInput";
pub const SEND_INPUT: &str = "/process.Process/SendInput";
pub const SEND_SIGNAL: &str = "/process.Process/SendSignal";
pub const CLOSE_STDIN: &str = "/process.Process/CloseStdin";

messages! {
    /// Nothing: what `List` is asked with, and what `Update`, `SendInput`, `StreamInput`, `SendSignal` and `CloseStdin` answer.
    Empty {}

    ListResponse {
        processes: Vec<ProcessInfo>,
    }

    ProcessInfo {
        config: ProcessConfig,
        pid: u32,
        tag: Option<String>,
    }

    ProcessConfig {
        cmd: String,
        args: Vec<String>,
        envs: BTreeMap<String, String>,
        cwd: Option<String>,
    }

    StartRequest {
        process: ProcessConfig,
        /// There if the process has a terminal.
        pty: Option<Pty>,
        tag: Option<String>,
        /// Whether its input stays open. Older clients do not say so and mean yes: ask [`StartRequest::keeps_stdin`].
        stdin: Option<bool>,
    }

    StartResponse {
        event: Option<ProcessEvent>,
    }

    Pty {
        size: PtySize,
    }

    PtySize {
        cols: u32,
        rows: u32,
    }

    ConnectRequest {
        process: Option<ProcessSelector>,
    }

    ConnectResponse {
        event: Option<ProcessEvent>,
    }

    UpdateRequest {
        process: Option<ProcessSelector>,
        pty: Option<Pty>,
    }

    SendInputRequest {
        process: Option<ProcessSelector>,
        input: Option<ProcessInput>,
    }

    SendSignalRequest {
        process: Option<ProcessSelector>,
        signal: Signal,
    }

    CloseStdinRequest {
        process: Option<ProcessSelector>,
    }

    StartEvent {
        pid: u32,
    }

    EndEvent {
        /// -1 when a signal ended it.
        #[serde(alias = "exit_code")]
        exit_code: i32,
        /// Whether it ended by itself.
        exited: bool,
        /// `exit status 2`, `signal: killed`.
        status: String,
        /// There unless all went well.
        error: Option<String>,
    }

    /// Which process the data of the stream is for.
    StreamInputStart {
        process: Option<ProcessSelector>,
    }

    StreamInputData {
        input: Option<ProcessInput>,
    }
}

choices! {
    DataEvent {
        output: Output,
    }

    StreamInputRequest {
        event: StreamInputEvent,
    }
}

oneofs! {
    ProcessSelector {
        pid: Pid(u32),
        /// What whoever started it calls it.
        tag: Tag(String),
    }

    ProcessInput {
        stdin: Stdin(Bytes),
        pty: Pty(Bytes),
    }

    ProcessEvent {
        start: Start(StartEvent),
        data: Data(DataEvent),
        end: End(EndEvent),
        keepalive: Keepalive(Empty),
    }

    Output {
        stdout: Stdout(Bytes),
        stderr: Stderr(Bytes),
        pty: Pty(Bytes),
    }

    StreamInputEvent {
        start: Start(StreamInputStart),
        data: Data(StreamInputData),
        keepalive: Keepalive(Empty),
    }
}

enums! {
    Signal {
        Unspecified = 0 "SIGNAL_UNSPECIFIED",
        Sigterm = 15 "SIGNAL_SIGTERM",
        Sigkill = 9 "SIGNAL_SIGKILL",
    }
}

impl StartRequest {
    pub fn keeps_stdin(&self) -> bool {
        self.stdin.unwrap_or(true)
    }
}

impl From<Output> for ProcessEvent {
    fn from(output: Output) -> Self {
        Self::Data(output.into())
    }
}

impl From<ProcessEvent> for StartResponse {
    fn from(event: ProcessEvent) -> Self {
        Self { event: Some(event) }
    }
}

impl From<ProcessEvent> for ConnectResponse {
    fn from(event: ProcessEvent) -> Self {
        Self { event: Some(event) }
    }
}

impl EndEvent {
    /// As the SDKs know it: `exit status N`, and an error unless it is zero.
    pub fn exited(code: i32) -> Self {
        let status = format!("exit status {code}");
        let error = (code != 0).then(|| status.clone());
        Self { exit_code: code, exited: true, status, error }
    }

    /// As the SDKs know it: no code, and what the signal with this number is called.
    pub fn signalled(number: i32) -> Self {
        let status = format!("signal: {}", signal_name(number));
        Self { exit_code: -1, exited: false, error: Some(status.clone()), status }
    }
}

/// What Go calls the signals of Linux, since that is what clients have always been told.
fn signal_name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "hangup",
        "interrupt",
        "quit",
        "illegal instruction",
        "trace/breakpoint trap",
        "aborted",
        "bus error",
        "floating point exception",
        "killed",
        "user defined signal 1",
        "segmentation fault",
        "user defined signal 2",
        "broken pipe",
        "alarm clock",
        "terminated",
        "stack fault",
        "child exited",
        "continued",
        "stopped (signal)",
        "stopped",
        "stopped (tty input)",
        "stopped (tty output)",
        "urgent I/O condition",
        "CPU time limit exceeded",
        "file size limit exceeded",
        "virtual timer expired",
        "profiling timer expired",
        "window changed",
        "I/O possible",
        "power failure",
        "bad system call",
    ];
    let place = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    let name = place.and_then(|place| NAMES.get(place));
    name.map_or_else(|| format!("signal {number}"), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use serde::{Serialize, de::DeserializeOwned};
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(json: Value) -> T {
        serde_json::from_value(json).unwrap()
    }

    fn written(message: impl Serialize) -> Value {
        serde_json::to_value(message).unwrap()
    }

    #[test]
    fn a_command_of_the_sdk_is_read() {
        let sent = json!({
            "process": {"cmd": "/bin/bash", "args": ["-l", "-c", "echo hi"], "envs": {"A": "1"}, "cwd": "/tmp"},
            "stdin": false,
        });
        let request: StartRequest = read(sent.clone());
        assert_eq!(request.process.args, ["-l", "-c", "echo hi"]);
        assert_eq!(request.process.cwd.as_deref(), Some("/tmp"));
        assert!(!request.keeps_stdin() && request.pty.is_none() && request.tag.is_none());
        assert_eq!(written(request), sent);
    }

    #[test]
    fn a_command_of_an_older_sdk_keeps_its_input() {
        assert!(read::<StartRequest>(json!({"process": {"cmd": "cat"}})).keeps_stdin());
        assert!(read::<StartRequest>(json!({"process": {"cmd": "cat"}, "stdin": null})).keeps_stdin());
    }

    #[test]
    fn a_terminal_of_the_sdk_is_read() {
        let sent = json!({
            "process": {
                "cmd": "/bin/bash", "args": ["-i", "-l"],
                "envs": {"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
            },
            "pty": {"size": {"cols": 80, "rows": 24}}, "tag": "one",
        });
        let request: StartRequest = read(sent.clone());
        assert_eq!(request.pty, Some(Pty { size: PtySize { cols: 80, rows: 24 } }));
        assert_eq!(written(request), sent);
    }

    #[test]
    fn events_are_as_the_sdks_read_them() {
        let events = [
            (ProcessEvent::Start(StartEvent { pid: 12 }), json!({"start": {"pid": 12}})),
            (Output::Stdout("hi\n".into()).into(), json!({"data": {"stdout": "aGkK"}})),
            (Output::Stderr(Bytes::from_static(&[0xff])).into(), json!({"data": {"stderr": "/w=="}})),
            (Output::Pty(Bytes::new()).into(), json!({"data": {"pty": ""}})),
            (ProcessEvent::Keepalive(Empty {}), json!({"keepalive": {}})),
            (ProcessEvent::End(EndEvent::exited(0)), json!({"end": {"exited": true, "status": "exit status 0"}})),
            (
                ProcessEvent::End(EndEvent::exited(2)),
                json!({"end": {"exitCode": 2, "exited": true, "status": "exit status 2", "error": "exit status 2"}}),
            ),
            (
                ProcessEvent::End(EndEvent::signalled(9)),
                json!({"end": {"exitCode": -1, "status": "signal: killed", "error": "signal: killed"}}),
            ),
        ];
        for (event, json) in events {
            let response = StartResponse::from(event.clone());
            assert_eq!(written(&response), json!({ "event": json }));
            assert_eq!(read::<StartResponse>(json!({ "event": json })), response);
            assert_eq!(read::<ConnectResponse>(json!({ "event": json })), event.into());
        }
    }

    #[test]
    fn signals_are_called_what_clients_have_always_been_told() {
        for (number, name) in [
            (1, "hangup"),
            (2, "interrupt"),
            (6, "aborted"),
            (9, "killed"),
            (11, "segmentation fault"),
            (13, "broken pipe"),
            (15, "terminated"),
            (31, "bad system call"),
            (34, "signal 34"),
            (0, "signal 0"),
            (i32::MIN, "signal -2147483648"),
        ] {
            assert_eq!(EndEvent::signalled(number).status, format!("signal: {name}"));
        }
    }

    #[test]
    fn a_process_is_selected_by_pid_or_tag_and_not_by_both() {
        let pid: ConnectRequest = read(json!({"process": {"pid": 0}}));
        assert_eq!(pid.process, Some(ProcessSelector::Pid(0)));
        let tag: CloseStdinRequest = read(json!({"process": {"tag": "one"}}));
        assert_eq!(tag.process, Some(ProcessSelector::Tag("one".into())));
        for nothing in [json!({}), json!({"process": {}}), json!({"process": {"pid": null}})] {
            assert_eq!(read::<ConnectRequest>(nothing).process, None);
        }
        let both = json!({"process": {"pid": 1, "tag": "one"}});
        assert!(serde_json::from_value::<ConnectRequest>(both).is_err());
    }

    #[test]
    fn input_is_read() {
        let request: SendInputRequest = read(json!({"process": {"pid": 12}, "input": {"stdin": "aGkK"}}));
        assert_eq!(request.input, Some(ProcessInput::Stdin("hi\n".into())));
        let request: SendInputRequest = read(json!({"process": {"pid": 12}, "input": {"pty": ""}}));
        assert_eq!(request.input, Some(ProcessInput::Pty(Bytes::new())));
        let both = json!({"input": {"stdin": "", "pty": ""}});
        assert!(serde_json::from_value::<SendInputRequest>(both).is_err());
    }

    #[test]
    fn a_stream_of_input_is_read() {
        let select = StreamInputStart { process: Some(ProcessSelector::Pid(12)) };
        let data = StreamInputData { input: Some(ProcessInput::Stdin("hi\n".into())) };
        for (event, json) in [
            (StreamInputEvent::Start(select), json!({"start": {"process": {"pid": 12}}})),
            (StreamInputEvent::Data(data), json!({"data": {"input": {"stdin": "aGkK"}}})),
            (StreamInputEvent::Keepalive(Empty {}), json!({"keepalive": {}})),
        ] {
            assert_eq!(written(StreamInputRequest::from(event.clone())), json);
            assert_eq!(read::<StreamInputRequest>(json), event.into());
        }
        assert_eq!(read::<StreamInputRequest>(json!({})).event, None);
        assert!(serde_json::from_value::<StreamInputRequest>(json!({"start": {}, "keepalive": {}})).is_err());
    }

    #[test]
    fn signals_are_read_by_name_and_number() {
        for (json, signal) in [
            (json!("SIGNAL_SIGKILL"), Signal::Sigkill),
            (json!("SIGNAL_SIGTERM"), Signal::Sigterm),
            (json!(9), Signal::Sigkill),
            (json!(null), Signal::Unspecified),
        ] {
            let request: SendSignalRequest = read(json!({"process": {"pid": 1}, "signal": json}));
            assert_eq!(request.signal, signal);
        }
        assert!(serde_json::from_value::<SendSignalRequest>(json!({"signal": "SIGNAL_SIGHUP"})).is_err());
    }

    #[test]
    fn a_list_is_as_the_sdks_read_it() {
        let config = ProcessConfig { cmd: "sleep".into(), args: vec!["1".into()], ..ProcessConfig::default() };
        let list = ListResponse { processes: vec![ProcessInfo { config, pid: 7, tag: Some("t".into()) }] };
        let json = json!({"processes": [{"config": {"cmd": "sleep", "args": ["1"]}, "pid": 7, "tag": "t"}]});
        assert_eq!(written(&list), json);
        assert_eq!(read::<ListResponse>(json), list);
        assert_eq!(written(ListResponse::default()), json!({}));
    }

    #[test]
    fn a_terminal_is_resized() {
        let sent = json!({"process": {"pid": 3}, "pty": {"size": {"cols": 100, "rows": 30}}});
        let request: UpdateRequest = read(sent.clone());
        assert_eq!(request.pty.as_ref().map(|pty| pty.size.cols), Some(100));
        assert_eq!(written(request), sent);
    }
}
