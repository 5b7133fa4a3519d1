"""What owners of jobs say, and what follows: one protocol, for processes on Ray and for programs that attach by HTTP."""
