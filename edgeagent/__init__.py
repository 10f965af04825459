"""edgeagent measures local LLM servers on an edge box; see edgeagent/app.py for the whole arrow."""

__version__ = "0.1.0.dev0"
