//! The next tokens of a batch, drawn on the device.
