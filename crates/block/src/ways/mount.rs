//! Mounting the file system inside an image.
