"""PIDP-SGD and individual accounting, run again."""
