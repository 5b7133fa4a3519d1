"""The protocol of the owners of jobs: processes on Ray, and programs that attach over HTTP."""
