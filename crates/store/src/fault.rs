//! Places at which a test lets the server be killed.

cabana_fault::points! {
    LedgerAppended = "ledger.appended": "A row of the ledger is in the transaction, and nothing is in the journal.",
    JournalReady = "journal.ready": "Something is done in the transaction, and not in the journal.",
    JournalWritten = "journal.written": "It is in the journal, and nobody has been told.",
    JournalReplayed = "journal.replayed": "What a kill left in the journal is run again, and not committed.",
    CommitReady = "commit.ready": "The database has everything, and it is not committed.",
    CommitDone = "commit.done": "It is committed, and the journal has it too.",
    CommitCleared = "commit.cleared": "The journal is empty again.",
    LogMade = "log.made": "An output has files, and what was in memory is not in them.",
    LogTurned = "log.turned": "A turn is noted, and its bytes are not written.",
    LogWritten = "log.written": "Bytes of an output are written, and no reader knows.",
    LogCut = "log.cut": "What a kill left of an output is half cut to a whole.",
}
