//! Towline's own wire and disk formats: the .proto files and what is generated from them.
