//! Giving a device its saved state back, and what can be wrong with it.
//!
//! A device's state is one or more [`Section`]s of a snapshot. What is in them is as untrusted as
//! a guest: whatever it says is checked against what the device can be, and a device that was
//! given nonsense is refused, by the section's and the field's name. What the guest's driver has
//! been told of a device (its size, its address, what it can do) has to be true of the restored
//! one too; where it is not, that is an error of its own, as it is the caller who can mend it.

use std::fmt::Display;

use tine_snapshot::section::{Section, SectionError};

/// Why a device could not be restored. After an error the device is as after a reset.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A section is not what it should be.
    #[error(transparent)]
    Section(#[from] SectionError),
    /// There is no such section.
    #[error("the snapshot has no section {section}: it is of a machine without this device")]
    Missing {
        /// The section's name.
        section: String,
    },
    /// No device can have been in this state.
    #[error("section {section}: {field} {reason}: the snapshot is damaged")]
    Field {
        /// The section.
        section: String,
        /// Which of its values.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The device is not the one that the guest's driver knows.
    #[error(
        "section {section}: {what} was {saved} in the snapshot and is {here} here: {next_step}"
    )]
    Differs {
        /// The section.
        section: String,
        /// What differs.
        what: &'static str,
        /// The value that the driver knows.
        saved: String,
        /// The value that it would find.
        here: String,
        /// How to get on.
        next_step: &'static str,
    },
    /// The host does not let the device start.
    #[error("section {section}: {reason}")]
    Activate {
        /// The section.
        section: String,
        /// What the device said.
        reason: String,
    },
}

impl RestoreError {
    /// A value that no device can have had.
    pub fn field(section: &str, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Field {
            section: section.to_owned(),
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// The device could not be started.
    pub fn activate(section: &str, reason: impl Display) -> Self {
        Self::Activate {
            section: section.to_owned(),
            reason: reason.to_string(),
        }
    }

    /// Fails unless a value is what the driver knows it to be.
    pub fn unless_same<T: PartialEq + Display>(
        section: &str,
        what: &'static str,
        saved: T,
        here: T,
        next_step: &'static str,
    ) -> Result<(), Self> {
        match saved == here {
            true => Ok(()),
            false => Err(Self::Differs {
                section: section.to_owned(),
                what,
                saved: saved.to_string(),
                here: here.to_string(),
                next_step,
            }),
        }
    }
}

/// The section of this name.
pub fn find<'a>(sections: &'a [Section], name: &str) -> Result<&'a Section, RestoreError> {
    let found = sections.iter().find(|section| section.name == name);
    found.ok_or_else(|| RestoreError::Missing {
        section: name.to_owned(),
    })
}
