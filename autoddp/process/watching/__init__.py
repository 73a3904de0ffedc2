"""Notices ranks that wait for what will not come, says where each stands, and ends the job."""
