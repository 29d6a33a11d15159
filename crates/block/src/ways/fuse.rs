//! The image as one file in a FUSE file system.
