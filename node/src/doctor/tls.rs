//! The dates of certificates: that of the listener for clients, and those of the node in its cluster.

use std::{path::Path, time::Duration};

use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{Check, Patient, Planned, planned};

const AREA: &str = "tls";
/// Somebody has to get another one, which takes days in many places.
const TIME_TO_RENEW: Duration = Duration::from_secs(14 * 24 * 3600);
const DAY: i64 = 24 * 3600;
/// A node renews its own at two thirds of its life: one with less than this part left was not renewed.
const OWN_LEFT_OF: i64 = 6;
const HOW_OWN: &str =
    "start the node where it reaches a voter, which renews it; `towline cluster status` says what stands in the way";

pub(super) fn plan(patient: &Patient) -> Vec<Planned> {
    let config = patient.config.clone();
    vec![planned(AREA, "certificates", async move {
        let now = jiff::Timestamp::now().as_second();
        let mut checks = Vec::new();
        if let Some(tls) = &config.node.tls {
            let mend = "put the renewed certificate and its key at node.tls.certificate and node.tls.key, and restart the node";
            let chain = tls.certificates.iter().map(|der| (der, "node.tls.certificate", mend));
            let mend = "put the renewed authority at auth.client_ca, and restart the node";
            let authorities = tls.client_ca.iter().map(|der| (der, "auth.client_ca", mend));
            for (der, subject, mend) in chain.chain(authorities) {
                checks.push(given(subject, &dates(der), now, mend));
            }
        }
        let mend = "begin a new cluster with `towline cluster snapshot save` and `restore`: its authority ends";
        checks.extend(own(&config.node.data.join("tls/node.pem"), "of this node", now, HOW_OWN));
        checks.extend(own(&config.node.data.join("tls/authority.pem"), "authority of the cluster", now, mend));
        checks
    })]
}

/// From when to when a certificate is good, in seconds since 1970.
type Dates = Result<(i64, i64), String>;

fn dates(der: &CertificateDer<'_>) -> Dates {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|error| format!("cannot be read: {error}"))?;
    let validity = certificate.validity();
    Ok((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// One that somebody brings.
fn given(subject: &str, dates: &Dates, now: i64, mend: &str) -> Check {
    let warn_below = i64::try_from(TIME_TO_RENEW.as_secs()).unwrap_or(i64::MAX);
    judge(subject, dates, now, |_| warn_below, mend)
}

/// One that the cluster signs; none before this node is in one.
fn own(path: &Path, subject: &str, now: i64, mend: &str) -> Option<Check> {
    let pem = std::fs::read(path).ok()?;
    let read = CertificateDer::from_pem_slice(&pem).map_err(|error| format!("{}: {error}", path.display()));
    Some(judge(subject, &read.and_then(|der| dates(&der)), now, |life| life / OWN_LEFT_OF, mend))
}

fn judge(subject: &str, dates: &Dates, now: i64, warn_below: impl Fn(i64) -> i64, mend: &str) -> Check {
    let (begins, ends) = match dates {
        Ok(dates) => *dates,
        Err(error) => return Check::fail(AREA, subject, error, mend),
    };
    let date = |second| jiff::Timestamp::from_second(second).map_or_else(|_| "?".to_owned(), |at| at.to_string());
    if now < begins {
        let mend = "set the clock of this machine right (`timedatectl`), or wait";
        return Check::fail(AREA, subject, format!("is good from {} on", date(begins)), mend);
    }
    if now >= ends {
        return Check::fail(AREA, subject, format!("ended on {}", date(ends)), mend);
    }
    let left = ends - now;
    let detail = format!("good until {} ({} days)", date(ends), left / DAY);
    if left < warn_below(ends - begins) {
        Check::warn(AREA, subject, detail, mend)
    } else {
        Check::ok(AREA, subject, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_certificate_is_told_before_it_ends() {
        let life = Ok((0, 100 * DAY));
        for (now, verdict) in [
            (-1, Verdict::Fail),
            (0, Verdict::Ok),
            (86 * DAY, Verdict::Ok),
            (86 * DAY + 1, Verdict::Warn),
            (100 * DAY, Verdict::Fail),
        ] {
            assert_eq!(given("c", &life, now, "mend").verdict, verdict, "{now}");
        }
        assert_eq!(given("c", &Err("no certificate".to_owned()), 0, "mend").verdict, Verdict::Fail);
    }

    #[test]
    fn the_certificate_of_a_node_is_read_from_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.pem");
        assert_eq!(own(&path, "of this node", 0, HOW_OWN), None, "it is in no cluster yet");
        let key = rcgen::KeyPair::generate().unwrap();
        let mut wanted = rcgen::CertificateParams::new(["a".to_owned()]).unwrap();
        (wanted.not_before, wanted.not_after) = (rcgen::date_time_ymd(2026, 1, 1), rcgen::date_time_ymd(2026, 1, 31));
        std::fs::write(&path, wanted.self_signed(&key).unwrap().pem()).unwrap();
        let at = |day: i64| own(&path, "of this node", 1_767_225_600 + day * DAY, HOW_OWN).unwrap().verdict;
        assert_eq!((at(20), at(26), at(31)), (Verdict::Ok, Verdict::Warn, Verdict::Fail));
    }
}
