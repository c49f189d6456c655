//! Files of the guest: what `/v1/files` answers.
