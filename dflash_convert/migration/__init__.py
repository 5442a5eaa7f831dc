"""A draft's GGUF in a fork's or an early format → mainline's: `plan_migration` decides, `migrate_file` writes."""
