//! ublk: a block device served from user space.
