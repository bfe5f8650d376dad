//! Towline's own wire and disk formats: the .proto files and what is generated from them.
//!
//! Field numbers are never reused, and every reader tolerates fields that it does not know. Conversions to and from
//! core types live in `towline-cluster`; nothing here knows them.

/// Package `towline.v1`.
#[expect(missing_docs, reason = "generated; the .proto files hold the documentation")]
pub mod v1 {
    tonic::include_proto!("towline.v1");
}
