//! Built-in kernels: hashes, AES-GCM and codecs.
