//! The jail that a monitor runs in.
