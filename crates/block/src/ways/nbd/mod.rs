//! Network block device (newstyle).
