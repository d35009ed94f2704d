c = get_config()  # noqa: F821
c.InteractiveShell.colors = "nocolor"
c.InteractiveShellApp.extensions = ["cabana_shown"]
c.HistoryManager.enabled = False
c.PlainTextFormatter.max_seq_length = 0
