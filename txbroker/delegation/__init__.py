"""Who is authoritative for which zone: cuts, epochs, walks. Pure; the shells are in control/."""
