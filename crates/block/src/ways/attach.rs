//! An image as a block device (ublk where the kernel has it, else loop over FUSE).
