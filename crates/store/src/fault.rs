//! Places at which a test lets the server be killed.

cabana_fault::points! {
    CommitReady = "commit.ready": "A transaction is written, and not committed.",
    CommitDone = "commit.done": "It is committed, and nobody has been told.",
    LedgerAppended = "ledger.appended": "A row of the ledger is written, and its transaction goes on.",
    LogMade = "log.made": "An output has files, and what was in memory is not in them.",
    LogTurned = "log.turned": "A turn is noted, and its bytes are not written.",
    LogWritten = "log.written": "Bytes of an output are written, and no reader knows.",
    LogCut = "log.cut": "What a kill left of an output is half cut to a whole.",
}
