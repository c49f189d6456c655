//! What the controller is told of settings, before the start and after.

use super::command::Refusal;
use super::controller::Controller;
use super::handle::Handle;
use super::metrics;
use super::settings::{self, Change, DrivePatch, LoggerSettings, MetricsSettings};
use crate::logger;

impl Controller {
    pub(super) fn configure(&mut self, change: Change) -> Result<(), Refusal> {
        self.before_start()?;
        if let Change::Mmds(mmds) = &change {
            let mut trial = self.settings.clone();
            trial.apply(change.clone())?;
            let refused = |err| settings::BadSettings::new(err);
            self.shared
                .metadata
                .configure(mmds.config())
                .map_err(refused)?;
        }
        self.settings.apply(change)?;
        self.publish_settings();
        Ok(())
    }

    pub(super) fn set_logger(&mut self, settings: LoggerSettings) -> Result<(), Refusal> {
        self.before_start()?;
        let path = settings.log_path.as_deref();
        logger::configure(path, settings.level, settings.show_level)
            .map_err(|err| Refusal::failed("write the log", err))?;
        self.settings.logger = Some(settings);
        self.publish_settings();
        Ok(())
    }

    pub(super) fn set_metrics(&mut self, settings: MetricsSettings) -> Result<(), Refusal> {
        self.before_start()?;
        if self.metrics.is_some() {
            return Err(Refusal::failed("set up metrics", "they are set up already"));
        }
        let file = logger::open(&settings.metrics_path)
            .map_err(|err| Refusal::failed("open the metrics file", err))?;
        self.metrics = Some((file, settings.clone()));
        self.settings.metrics = Some(settings);
        self.publish_settings();
        Ok(())
    }

    pub(super) fn flush_metrics(&mut self) -> Result<(), Refusal> {
        self.started()?;
        let Some((file, settings)) = &mut self.metrics else {
            return Err(Refusal::failed("flush metrics", "no metrics file is set"));
        };
        let handle = Handle(self.shared.clone());
        metrics::write_line(file, settings, &handle)
            .map_err(|err| Refusal::failed("flush metrics", err))
    }

    pub(super) fn update_drive(&mut self, patch: &DrivePatch) -> Result<(), Refusal> {
        self.started()?;
        let drive = self
            .settings
            .drives
            .iter_mut()
            .find(|drive| drive.drive_id == patch.drive_id);
        let drive = drive.ok_or_else(|| {
            settings::BadSettings::new(format_args!("there is no drive {:?}", patch.drive_id))
        })?;
        let machine = self.machine.as_ref().ok_or(Refusal::BeforeStart)?;
        let failed = |err| Refusal::failed("change the drive", err);
        let mut next = drive.clone();
        if let Some(path) = &patch.path_on_host {
            next.path_on_host = path.clone();
        }
        // Without a new limit the image is looked at again, in case its size has changed.
        if patch.path_on_host.is_some() || patch.rate_limiter.is_none() {
            machine
                .replace_drive(&next.block_config())
                .map_err(failed)?;
        }
        if let Some(limits) = &patch.rate_limiter {
            let id = &patch.drive_id;
            machine.limit_drive(id, limits).map_err(failed)?;
            let known = next.rate_limiter.get_or_insert_default();
            known.bandwidth = limits.bandwidth.or(known.bandwidth);
            known.ops = limits.ops.or(known.ops);
        }
        *drive = next;
        self.publish_settings();
        Ok(())
    }
}
