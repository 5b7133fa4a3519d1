"""An order of the queue as an example: highest response ratio next, for jobs with a number of iterations."""

from policies.api import State


class ResponseRatio:
    """Serve the job first that has waited longest beside its length, so that short jobs come early and long ones do not starve."""

    def keys(self, state: State, job_ids: list[str]) -> list[float]:
        keys = []
        for job_id in job_ids:
            job = state.job(job_id)
            left_s = (job.iterations - state.iterations_done(job_id)) * job.solo_s
            keys.append(left_s / (left_s + state.now_s - job.arrival_s))
        return keys
