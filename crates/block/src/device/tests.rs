//! Tests of the device.
